//! Forecasts: when will a waiting job start?
//!
//! A forecast runs the engine forward from a [`State`](state::State): the jobs that run, with the
//! time for which they have run, and the jobs that wait. Run times are unknown, so they are drawn
//! from those of earlier jobs ([`estimate`]), and the run is repeated. The arrivals of the last day
//! are repeated too, because later jobs may pass the waiting ones. The start times of all draws
//! give the median and the 90th percentile, which is corrected by earlier forecasts
//! ([`calibration`]).
//!
//! [`backtest`] makes forecasts within a replayed trace, and compares them with what happened then.

pub mod backtest;
pub mod calibration;
pub mod estimate;
pub mod state;
