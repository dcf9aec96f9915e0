//! Prices of what was used. The program that serves the pages knows how to find them.

use std::collections::BTreeMap;

use berth_api::berth::NodePool;
use berth_api::kueue::v1beta2::ResourceFlavor;

/// Finds prices: those that the reader entered, as `[FLAVOR/]RESOURCE=PRICE` separated by commas or
/// spaces, or else those of the NodePools that supply the flavors. The error is for the reader.
pub type FindPrices = fn(&str, &[NodePool], &[ResourceFlavor]) -> Result<Prices, String>;

/// Prices per hour of a CPU, a GiB of memory or a piece of another resource, by resource and
/// flavor; without a flavor for every flavor that has no price of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices(BTreeMap<(String, Option<String>), f64>);

impl FromIterator<((String, Option<String>), f64)> for Prices {
    fn from_iter<T: IntoIterator<Item = ((String, Option<String>), f64)>>(prices: T) -> Self {
        Self(prices.into_iter().collect())
    }
}

impl Prices {
    /// True if there is no price.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The price of a flavor's resource; zero if there is none.
    pub fn of(&self, flavor: &str, resource: &str) -> f64 {
        let own = self.0.get(&(resource.to_owned(), Some(flavor.to_owned())));
        own.or_else(|| self.0.get(&(resource.to_owned(), None))).copied().unwrap_or(0.0)
    }
}
