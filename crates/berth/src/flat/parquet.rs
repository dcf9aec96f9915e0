//! Writes a [`Flat`] table as a Parquet file: one row group, no compression.

use std::sync::Arc;

use anyhow::{Context, bail};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use super::{Cell, Column, Flat, Kind};

/// The file of a table.
///
/// # Errors
/// A cell does not have the type of its column.
pub fn file(table: &Flat) -> anyhow::Result<Vec<u8>> {
    let fields: Vec<_> = table.columns.iter().map(field).collect::<anyhow::Result<_>>()?;
    let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
    let created_by = format!("berth version {}", env!("CARGO_PKG_VERSION"));
    let properties = WriterProperties::builder().set_created_by(created_by).build();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for (at, column) in table.columns.iter().enumerate() {
        let cells = table.rows.iter().map(|row| row.get(at).unwrap_or(&Cell::Empty));
        let mut writer = group.next_column()?.context("a writer for each column")?;
        write(&mut writer, column, cells).with_context(|| format!("column {}", column.name))?;
        writer.close()?;
    }
    group.close()?;
    Ok(file.into_inner()?)
}

fn field(column: &Column) -> anyhow::Result<Arc<Type>> {
    let (physical, logical) = match column.kind {
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Integer => (Physical::INT64, None),
        Kind::Number => (Physical::DOUBLE, None),
        Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
    };
    let repetition = if column.is_optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let field = Type::primitive_type_builder(&column.name, physical).with_logical_type(logical);
    Ok(Arc::new(field.with_repetition(repetition).build()?))
}

fn write<'a>(
    writer: &mut SerializedColumnWriter<'_>,
    column: &Column,
    cells: impl Iterator<Item = &'a Cell>,
) -> anyhow::Result<()> {
    // Empty cells have the level 0 and no value.
    let (mut levels, mut texts, mut integers, mut numbers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for cell in cells {
        match (column.kind, cell) {
            (_, Cell::Empty) if column.is_optional => {}
            (Kind::Text, Cell::Text(text)) => texts.push(ByteArray::from(text.as_str())),
            (Kind::Integer, Cell::Integer(number)) => integers.push(*number),
            (Kind::Number, Cell::Number(number)) => numbers.push(*number),
            (Kind::Time, Cell::Time(at)) => integers.push(at.as_microsecond()),
            (kind, cell) => bail!("expected a value of type {kind:?}, found {cell:?}"),
        }
        levels.push(i16::from(*cell != Cell::Empty));
    }
    let levels = column.is_optional.then_some(levels.as_slice());
    match column.kind {
        Kind::Text => batch::<ByteArrayType>(writer, &texts, levels),
        Kind::Integer | Kind::Time => batch::<Int64Type>(writer, &integers, levels),
        Kind::Number => batch::<DoubleType>(writer, &numbers, levels),
    }
}

fn batch<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> anyhow::Result<()> {
    writer.typed::<T>().write_batch(values, levels, None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    /// The rows of a file: the names and values of their fields.
    fn read(bytes: Vec<u8>) -> Vec<Vec<(String, Field)>> {
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a Parquet file");
        let rows = reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row"));
        rows.map(|row| row.get_column_iter().map(|(name, field)| (name.clone(), field.clone())).collect()).collect()
    }

    #[test]
    fn a_file_has_the_values_of_the_table() {
        let columns = vec![
            Column::required("NAME", Kind::Text),
            Column::required("JOBS", Kind::Integer),
            Column::optional("QUOTA HOURS", Kind::Number),
            Column::optional("END", Kind::Time),
        ];
        let end = Timestamp::from_second(1_767_225_600).expect("a time");
        let first = vec![Cell::Text("blue, \"a\"".to_owned()), Cell::Integer(-3), Cell::Empty, Cell::Time(end)];
        let second = vec![Cell::Text(String::new()), Cell::Integer(7), Cell::Number(0.1), Cell::Empty];
        let rows = read(file(&Flat { columns, rows: vec![first, second] }).expect("a file"));
        let named = |values: [Field; 4]| {
            let names = ["name", "jobs", "quota_hours", "end"].map(str::to_owned);
            names.into_iter().zip(values).collect::<Vec<_>>()
        };
        let end = Field::TimestampMicros(end.as_microsecond());
        assert_eq!(rows[0], named([Field::Str("blue, \"a\"".to_owned()), Field::Long(-3), Field::Null, end]));
        assert_eq!(rows[1], named([Field::Str(String::new()), Field::Long(7), Field::Double(0.1), Field::Null]));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn an_empty_table_is_a_file_with_a_schema() {
        let table = Flat { columns: vec![Column::required("NAME", Kind::Text)], rows: Vec::new() };
        let bytes = file(&table).expect("a file");
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a Parquet file");
        assert_eq!(reader.metadata().file_metadata().schema_descr().column(0).name(), "name");
        let wrong = file(&Flat { rows: vec![Vec::new()], ..table }).expect_err("a row without its cell");
        assert_eq!(format!("{wrong:#}"), "column name: expected a value of type Text, found Empty");
    }
}
