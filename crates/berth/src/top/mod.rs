//! `berth top`: the queues, jobs, nodes and events of a cluster on a terminal, live.
//!
//! [`live`] follows the objects that the user may read; [`state`] is what it knows at a time.
//! [`views`] makes a [`sheet`] of it for each view. The [`model`] is what is on the screen and
//! changes by keys, and [`draw`] draws it. Only this file and [`screen`] know the terminal.

mod draw;
#[cfg(test)]
mod fixture;
mod help;
mod live;
mod model;
mod screen;
mod sheet;
mod state;
mod views;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_dashboard::gpu_use::{self, GpuUses};
use clap::Args;
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures::StreamExt;
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::batch::Place;
use crate::{accounting, explain, foresee, process};
use draw::Look;
use live::{ClusterClock, Live};
use model::{Effect, Model, Question};
use screen::Screen;
use views::View;

/// Interval of the screen's updates without changes, for ages.
const TICK: Duration = Duration::from_secs(1);
/// Minimum time between two updates by changes of the cluster.
const UPDATE_MIN: Duration = Duration::from_millis(200);
/// Interval of readings of the cluster's clock, and of answers to the question on the screen.
const ASK_INTERVAL: Duration = Duration::from_secs(3);

/// Options of `berth top`.
#[derive(Args)]
pub struct Options {
    /// The first view.
    #[arg(value_enum, default_value_t = View::Queues)]
    view: View,
    #[command(flatten)]
    place: Place,
}

/// Shows the cluster until the user quits.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        bail!("berth top needs a terminal; `berth queue`, `berth nodes` and `kubectl get` print lists");
    }
    process::run(async {
        let config = options.place.connect.config().await?;
        let (cluster, own) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let client = crate::component::connect::asking(config)?;
        // Errors of the connection are printed before the screen is taken.
        let clock = ClusterClock::new(foresee::now(&client).await?, Instant::now());
        let mut live = Live::new(client.clone(), options.place.namespace.clone(), own);
        live.follow(options.view);
        let model = Model::new(cluster.trim_end_matches('/').to_owned(), options.view);
        let mut screen = Screen::enter().context("the terminal cannot be used")?;
        let ended = tokio::select! {
            biased;
            signal = process::signal() => signal.map(drop),
            ended = (Program { client, live, clock, model }).run(&mut screen) => ended,
        };
        drop(screen);
        ended.map(|()| ExitCode::SUCCESS)
    })
}

/// What the terminal can show, by the user's environment.
fn look() -> Look {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default().to_lowercase();
    Look {
        has_color: variable("NO_COLOR").is_none() && variable("TERM").is_none_or(|term| term != "dumb"),
        has_unicode: locale.contains("utf-8") || locale.contains("utf8"),
    }
}

/// A result that the program waits for.
enum Answer {
    /// Time on the cluster's clock.
    Time(jiff::Timestamp, Instant),
    /// What the GPUs of the nodes report.
    Gpus(GpuUses),
    /// A text about an object.
    Text(Question, String),
}

/// The running program.
struct Program {
    client: Client,
    live: Live,
    clock: ClusterClock,
    model: Model,
}

impl Program {
    /// Runs until the user quits.
    async fn run(mut self, screen: &mut Screen) -> anyhow::Result<()> {
        let look = look();
        let mut keys = EventStream::new();
        let (sender, mut answers) = mpsc::channel(16);
        let (mut tick, mut asking) = (tokio::time::interval(TICK), tokio::time::interval(ASK_INTERVAL));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        asking.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (changed, mut updated, mut is_outdated) = (self.live.changed.clone(), Instant::now(), false);
        self.read();
        loop {
            self.draw(screen, look)?;
            // A panic of another task has restored the terminal.
            if !Screen::is_entered() {
                bail!("a task panicked");
            }
            tokio::select! {
                biased;
                event = keys.next() => match event {
                    Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match self.model.key(key) {
                        Effect::Draw => {}
                        Effect::Read => self.read(),
                        Effect::Ask(question) => self.ask(question, &sender),
                        Effect::Quit => return Ok(()),
                    },
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error).context("the terminal cannot be read"),
                    None => return Ok(()),
                },
                Some(answer) = answers.recv() => match answer {
                    Answer::Time(read, at) => self.clock.read(read, at),
                    Answer::Gpus(uses) => {
                        self.live.gpu_use = uses;
                        self.read();
                    }
                    Answer::Text(question, text) => self.model.answer(&question, text),
                },
                () = changed.notified(), if !is_outdated => is_outdated = true,
                () = tokio::time::sleep_until(updated + UPDATE_MIN), if is_outdated => {
                    self.read();
                    (updated, is_outdated) = (Instant::now(), false);
                }
                _ = tick.tick() => self.read(),
                _ = asking.tick() => {
                    self.ask_time(&sender);
                    if self.model.view() == View::Gpus {
                        self.ask_gpus(&sender);
                    }
                    if let Some(question) = self.model.question().cloned() {
                        self.ask(question, &sender);
                    }
                }
            }
        }
    }

    fn read(&mut self) {
        self.live.follow(self.model.view());
        let state = self.live.state(self.clock.now(Instant::now()));
        self.model.read(&state);
    }

    fn draw(&mut self, screen: &mut Screen, look: Look) -> anyhow::Result<()> {
        let model = &mut self.model;
        let drawn = screen.terminal.draw(|frame| {
            let cursor = draw::draw(model, look, frame.area(), frame.buffer_mut());
            if let Some(cursor) = cursor {
                frame.set_cursor_position(cursor);
            }
        });
        drawn.map(drop).context("the terminal cannot be written")
    }

    fn ask_time(&self, answers: &mpsc::Sender<Answer>) {
        let (client, answers) = (self.client.clone(), answers.clone());
        tokio::spawn(async move {
            if let Ok(read) = foresee::now(&client).await {
                // The receiver is gone once the program has ended.
                let _ = answers.send(Answer::Time(read, Instant::now())).await;
            }
        });
    }

    /// Asks what the GPUs report, which cannot be watched.
    fn ask_gpus(&self, answers: &mpsc::Sender<Answer>) {
        let (client, answers) = (self.client.clone(), answers.clone());
        tokio::spawn(async move {
            let _ = answers.send(Answer::Gpus(gpu_use::read(&client).await)).await;
        });
    }

    fn ask(&self, question: Question, answers: &mpsc::Sender<Answer>) {
        let (client, answers) = (self.client.clone(), answers.clone());
        tokio::spawn(async move {
            let text = answer(&client, &question).await.unwrap_or_else(|error| process::in_full(&error));
            let _ = answers.send(Answer::Text(question, text)).await;
        });
    }
}

/// The text that `berth explain` and `berth history` print.
async fn answer(client: &Client, question: &Question) -> anyhow::Result<String> {
    match question {
        Question::Explain { namespace, name } => explain::text(client, namespace, name).await,
        Question::History { namespace, name } => accounting::history::text(client, namespace, name).await,
        Question::Holders(queue) => explain::holders_text(client, queue, HOLDERS_MAX).await,
    }
}

/// Maximum number of holders of a queue's quota to list.
const HOLDERS_MAX: usize = 500;
