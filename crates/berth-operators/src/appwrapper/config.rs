//! AppWrapper's configuration; see [`berth_api::appwrapper`], where a ClusterConfiguration can use
//! it, too.

pub use berth_api::appwrapper::*;
