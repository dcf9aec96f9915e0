//! GPU models: what a simulated GPU of a model reports.

/// Properties of a model, by its data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Model {
    /// Product name as the driver reports it.
    pub name: &'static str,
    /// Memory in MiB.
    pub memory: f64,
    /// Power without load, in watts.
    pub power_idle: f64,
    /// Maximum power in watts.
    pub power_max: f64,
    /// Maximum clock of the multiprocessors in MHz.
    pub sm_clock: f64,
    /// Clock of the memory in MHz.
    pub memory_clock: f64,
}

const fn model(name: &'static str, memory: f64, power: [f64; 2], clocks: [f64; 2]) -> Model {
    Model { name, memory, power_idle: power[0], power_max: power[1], sm_clock: clocks[0], memory_clock: clocks[1] }
}

/// Models by the words that their labels contain, more specific ones first.
const MODELS: &[(&[&str], Model)] = &[
    (&["b200"], model("NVIDIA B200", 183_359.0, [140.0, 1000.0], [1965.0, 3996.0])),
    (&["gb300"], model("NVIDIA GB300", 284_208.0, [180.0, 1400.0], [1920.0, 3996.0])),
    (&["h200"], model("NVIDIA H200", 143_771.0, [75.0, 700.0], [1980.0, 3201.0])),
    (&["h100"], model("NVIDIA H100 80GB HBM3", 81_559.0, [70.0, 700.0], [1980.0, 2619.0])),
    (&["a100", "80gb"], model("NVIDIA A100-SXM4-80GB", 81_920.0, [60.0, 400.0], [1410.0, 1593.0])),
    (&["a100"], model("NVIDIA A100-SXM4-40GB", 40_960.0, [50.0, 400.0], [1410.0, 1215.0])),
    (&["l40s"], model("NVIDIA L40S", 46_068.0, [35.0, 350.0], [2520.0, 9001.0])),
    (&["l4"], model("NVIDIA L4", 23_034.0, [16.0, 72.0], [2040.0, 6251.0])),
    (&["v100"], model("Tesla V100-SXM2-16GB", 16_384.0, [40.0, 300.0], [1530.0, 877.0])),
    (&["p100"], model("Tesla P100-PCIE-16GB", 16_384.0, [30.0, 250.0], [1328.0, 715.0])),
    (&["t4"], model("Tesla T4", 15_360.0, [10.0, 70.0], [1590.0, 5001.0])),
    (&["p4"], model("Tesla P4", 7_680.0, [7.0, 75.0], [1531.0, 3003.0])),
];

/// Properties of a model that is not in the list.
const OTHER: Model = model("NVIDIA GPU", 16_384.0, [30.0, 250.0], [1500.0, 5000.0]);

/// The model that a node's label names, such as `nvidia-l4` or `NVIDIA-A100-SXM4-80GB`.
pub(super) fn of_label(label: &str) -> Model {
    let label = label.to_lowercase();
    let named = |(words, _): &&(&[&str], Model)| words.iter().all(|word| label.contains(word));
    MODELS.iter().find(named).map_or(OTHER, |(_, model)| *model)
}
