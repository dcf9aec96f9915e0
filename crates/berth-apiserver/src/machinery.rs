//! Stand-ins for parts of berth-apimachinery that have not landed; goes when they do.
/// A schema.
#[derive(Debug)]
pub struct Schema;
/// A Table column.
#[derive(Clone, Debug)]
pub struct Column;
