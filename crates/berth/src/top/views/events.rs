//! The view of events, newest first.

use std::sync::Arc;

use berth_apimachinery::table;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;

use super::finish;
use crate::listing::Column;
use crate::top::sheet::{Cell, Row, Sheet, Target, Tone};
use crate::top::state::State;

/// Time at which an event was last seen.
fn last_seen(event: &Event) -> Timestamp {
    let of_series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|at| at.0);
    let last = event.last_timestamp.as_ref().map(|at| at.0);
    let seen = of_series.into_iter().chain(last).chain(event.event_time.as_ref().map(|at| at.0)).max();
    seen.or_else(|| event.creation_timestamp().map(|at| at.0)).unwrap_or_default()
}

pub(super) fn events(state: &State) -> Sheet {
    let mut newest: Vec<&Arc<Event>> = state.events.objects.iter().collect();
    newest.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
    let row = |event: &Arc<Event>| {
        let about = &event.involved_object;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let object = format!("{}/{}", text(&about.kind).to_lowercase(), text(&about.name));
        let series = event.series.as_ref().and_then(|series| series.count);
        let count = event.count.or(series).unwrap_or(1);
        let (kind, reason, message) = (text(&event.type_), text(&event.reason), text(&event.message));
        let texts = [
            table::age(last_seen(event), state.now),
            kind.clone(),
            reason.clone(),
            object.clone(),
            message.clone(),
            event.namespace().unwrap_or_default(),
            count.to_string(),
        ];
        let title = format!("{reason} {object}");
        let target = Target::Text { title, text: format!("{kind} {reason}, {count} times\n{object}\n\n{message}") };
        let tone = if kind == "Normal" { Tone::Plain } else { Tone::Bad };
        let id = format!("{}/{}", event.namespace().unwrap_or_default(), event.name_any());
        Row { cells: texts.map(Cell::Text).to_vec(), target, id, tone }
    };
    let columns = vec![
        Column::Usual("LAST SEEN"),
        Column::Usual("TYPE"),
        Column::Usual("REASON"),
        Column::Usual("OBJECT"),
        Column::Usual("MESSAGE"),
        Column::Wide("NAMESPACE"),
        Column::Wide("COUNT"),
    ];
    let rows = newest.into_iter().map(row).collect();
    let limits = [state.events.limits("events")];
    finish(Sheet { columns, rows, ..Sheet::default() }, limits, state.events.is_loading(), "There is no event.")
}
