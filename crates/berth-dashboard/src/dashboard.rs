//! The pages of one cluster for one reader: what every page needs.

use std::time::Duration;

use berth_runtime::Clock;
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;

use crate::guard::Hosts;
use crate::html::Href;
use crate::layout::{Frame, Session};
use crate::prices::FindPrices;
use crate::request::Asked;

/// Time limit for the request of the API server's time.
const CLOCK_WAIT: Duration = Duration::from_secs(2);

/// The pages of one cluster, with one user's permissions.
#[derive(Clone)]
pub struct Dashboard {
    /// Reads the cluster.
    pub client: Client,
    /// Accepted host names.
    pub hosts: Hosts,
    /// Clock for ages, if the API server does not return its time.
    pub clock: Clock,
    /// The reader.
    pub session: Session,
    /// Finds the prices of what was used.
    pub prices: FindPrices,
}

impl Dashboard {
    /// The frame of a page at this address.
    pub(crate) fn frame<'a>(&'a self, asked: &Asked, title: &'a str, path: &[&str]) -> Frame<'a> {
        let here = Href::path(path).with_query(&asked.parameters.without("refresh").query());
        Frame { title, here, refresh: Some(asked.is_live()), session: &self.session }
    }

    /// The API server's time, to the second. Objects contain its times, this machine's clock may
    /// differ, and the clock of an embedded cluster may run many times faster.
    pub(crate) async fn now(&self) -> Timestamp {
        let date = async {
            let request = Request::get("/version").body(kube::client::Body::empty()).ok()?;
            let answer = self.client.send(request).await.ok()?;
            let date = answer.headers().get(header::DATE)?.to_str().ok()?.to_owned();
            jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
        };
        let date = tokio::time::timeout(CLOCK_WAIT, date).await.ok().flatten();
        date.unwrap_or_else(|| self.clock.now())
    }
}
