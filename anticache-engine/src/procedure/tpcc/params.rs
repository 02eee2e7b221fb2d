//! Parameters of the procedures, in memory and on the wire; the module's documentation has the layouts byte by byte.

use super::handles::MAX_NAME_BYTES;
use crate::txn::Abort;

/// Most lines of an order (clause 2.4.1.3).
pub const MAX_LINES: usize = 15;
/// Most units of an item in a line (clause 2.4.1.5).
pub const MAX_QUANTITY: i8 = 10;

/// Takes parameters from the front; errors name the procedure.
struct Reader<'params> {
    procedure: &'static str,
    all_bytes: usize,
    rest: &'params [u8],
}

impl<'params> Reader<'params> {
    fn new(procedure: &'static str, params: &'params [u8]) -> Self {
        Self { procedure, all_bytes: params.len(), rest: params }
    }

    fn refuse(&self, problem: &str) -> Abort {
        Abort::user(format!("{}: {problem}", self.procedure))
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Abort> {
        match self.rest.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(*bytes)
            }
            None => Err(self.refuse(&format!("parameters of {} bytes end too early", self.all_bytes))),
        }
    }

    fn i8(&mut self) -> Result<i8, Abort> {
        self.take().map(i8::from_le_bytes)
    }

    fn i16(&mut self) -> Result<i16, Abort> {
        self.take().map(i16::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, Abort> {
        self.take().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, Abort> {
        self.take().map(i64::from_le_bytes)
    }

    fn end(&self) -> Result<(), Abort> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.refuse(&format!("parameters of {} bytes, {} too many", self.all_bytes, self.rest.len())))
    }

    /// The customer's number, or if it is 0 the last name that the rest of the parameters is.
    fn customer(&self, c_id: i32) -> Result<CustomerBy, Abort> {
        if c_id != 0 {
            return self.end().map(|()| CustomerBy::Id(c_id));
        }
        let name = LastName::new(self.rest).filter(|name| !name.as_slice().is_empty());
        name.map(CustomerBy::LastName).ok_or_else(|| {
            self.refuse(&format!("a last name of {} bytes; 1 to {MAX_NAME_BYTES} are allowed", self.rest.len()))
        })
    }
}

/// A customer's last name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastName {
    bytes: [u8; MAX_NAME_BYTES],
    len: u8,
}

impl LastName {
    /// A name; `None` when it is longer than the column.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len: name.len() as u8 })
    }

    /// The name.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The home warehouse of a call whose parameters begin with it.
pub(super) fn home(params: &[u8]) -> Option<i16> {
    params.first_chunk().map(|&bytes| i16::from_le_bytes(bytes))
}

/// How a customer is chosen (clauses 2.5.1.2, 2.6.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CustomerBy {
    /// By number.
    Id(i32),
    /// By last name: of those who have it, the one in the middle.
    LastName(LastName),
}

impl CustomerBy {
    fn id(&self) -> i32 {
        match self {
            Self::Id(id) => *id,
            Self::LastName(_) => 0,
        }
    }

    fn encode_name(&self, out: &mut Vec<u8>) {
        if let Self::LastName(name) = self {
            out.extend_from_slice(name.as_slice());
        }
    }
}

/// One line of a new order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Line {
    /// Item.
    pub i_id: i32,
    /// Warehouse that supplies it.
    pub supply_w_id: i16,
    /// Units, 1 to [`MAX_QUANTITY`].
    pub quantity: i8,
}

/// Input of New-Order (clause 2.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOrder {
    /// Home warehouse.
    pub w_id: i16,
    /// District.
    pub d_id: i8,
    /// Customer.
    pub c_id: i32,
    /// Date of the order, in microseconds since 1970.
    pub entry_d_us: i64,
    lines: [Line; MAX_LINES],
    line_count: u8,
}

impl NewOrder {
    /// An order of these lines; `None` when there are none or more than [`MAX_LINES`].
    pub fn new(w_id: i16, d_id: i8, c_id: i32, entry_d_us: i64, lines: &[Line]) -> Option<Self> {
        let mut all = [Line::default(); MAX_LINES];
        all.get_mut(..lines.len())?.copy_from_slice(lines);
        let line_count = lines.len() as u8;
        (line_count > 0).then_some(Self { w_id, d_id, c_id, entry_d_us, lines: all, line_count })
    }

    /// Its lines.
    #[inline]
    pub fn lines(&self) -> &[Line] {
        &self.lines[..usize::from(self.line_count)]
    }

    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.w_id.to_le_bytes());
        out.extend_from_slice(&self.d_id.to_le_bytes());
        out.extend_from_slice(&self.c_id.to_le_bytes());
        out.extend_from_slice(&self.entry_d_us.to_le_bytes());
        out.push(self.line_count);
        for line in self.lines() {
            out.extend_from_slice(&line.i_id.to_le_bytes());
            out.extend_from_slice(&line.supply_w_id.to_le_bytes());
            out.extend_from_slice(&line.quantity.to_le_bytes());
        }
    }

    /// The input that the parameters say.
    ///
    /// # Errors
    /// A user abort naming what is too short, too long or out of bounds.
    pub fn decode(params: &[u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::new_order::NAME, params);
        let (w_id, d_id, c_id) = (reader.i16()?, reader.i8()?, reader.i32()?);
        let entry_d_us = reader.i64()?;
        let [line_count] = reader.take()?;
        let mut lines = [Line::default(); MAX_LINES];
        let Some(used) = lines.get_mut(..usize::from(line_count)).filter(|used| !used.is_empty()) else {
            return Err(reader.refuse(&format!("an order of {line_count} lines; 1 to {MAX_LINES} are allowed")));
        };
        for line in used {
            *line = Line { i_id: reader.i32()?, supply_w_id: reader.i16()?, quantity: reader.i8()? };
            if !(1..=MAX_QUANTITY).contains(&line.quantity) {
                let problem = format!("{} units of item {}; 1 to {MAX_QUANTITY} are allowed", line.quantity, line.i_id);
                return Err(reader.refuse(&problem));
            }
        }
        reader.end()?;
        Ok(Self { w_id, d_id, c_id, entry_d_us, lines, line_count })
    }
}

/// Input of Payment (clause 2.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payment {
    /// Warehouse that is paid at.
    pub w_id: i16,
    /// District that is paid at.
    pub d_id: i8,
    /// The customer's warehouse.
    pub c_w_id: i16,
    /// The customer's district.
    pub c_d_id: i8,
    /// The customer.
    pub customer: CustomerBy,
    /// Amount in cents.
    pub amount_cents: i32,
    /// Date, in microseconds since 1970.
    pub date_us: i64,
}

impl Payment {
    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.c_w_id.to_le_bytes());
        out.extend_from_slice(&self.c_d_id.to_le_bytes());
        out.extend_from_slice(&self.customer.id().to_le_bytes());
        out.extend_from_slice(&self.w_id.to_le_bytes());
        out.extend_from_slice(&self.d_id.to_le_bytes());
        out.extend_from_slice(&self.amount_cents.to_le_bytes());
        out.extend_from_slice(&self.date_us.to_le_bytes());
        self.customer.encode_name(out);
    }

    /// The input that the parameters say.
    ///
    /// # Errors
    /// As [`NewOrder::decode`].
    pub fn decode(params: &[u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::payment::NAME, params);
        let (c_w_id, c_d_id, c_id) = (reader.i16()?, reader.i8()?, reader.i32()?);
        let (w_id, d_id) = (reader.i16()?, reader.i8()?);
        let (amount_cents, date_us) = (reader.i32()?, reader.i64()?);
        let customer = reader.customer(c_id)?;
        Ok(Self { w_id, d_id, c_w_id, c_d_id, customer, amount_cents, date_us })
    }
}

/// Input of Order-Status (clause 2.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderStatus {
    /// Warehouse.
    pub w_id: i16,
    /// District.
    pub d_id: i8,
    /// The customer.
    pub customer: CustomerBy,
}

impl OrderStatus {
    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.w_id.to_le_bytes());
        out.extend_from_slice(&self.d_id.to_le_bytes());
        out.extend_from_slice(&self.customer.id().to_le_bytes());
        self.customer.encode_name(out);
    }

    /// The input that the parameters say.
    ///
    /// # Errors
    /// As [`NewOrder::decode`].
    pub fn decode(params: &[u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::order_status::NAME, params);
        let (w_id, d_id, c_id) = (reader.i16()?, reader.i8()?, reader.i32()?);
        Ok(Self { w_id, d_id, customer: reader.customer(c_id)? })
    }
}

/// Input of Delivery (clause 2.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Warehouse.
    pub w_id: i16,
    /// Carrier.
    pub carrier_id: i8,
    /// Date, in microseconds since 1970.
    pub date_us: i64,
}

impl Delivery {
    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.w_id.to_le_bytes());
        out.extend_from_slice(&self.carrier_id.to_le_bytes());
        out.extend_from_slice(&self.date_us.to_le_bytes());
    }

    /// The input that the parameters say.
    ///
    /// # Errors
    /// As [`NewOrder::decode`].
    pub fn decode(params: &[u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::delivery::NAME, params);
        let input = Self { w_id: reader.i16()?, carrier_id: reader.i8()?, date_us: reader.i64()? };
        reader.end().map(|()| input)
    }
}

/// Input of Stock-Level (clause 2.8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockLevel {
    /// Warehouse.
    pub w_id: i16,
    /// District.
    pub d_id: i8,
    /// Stock below this many units is low.
    pub threshold: i16,
}

impl StockLevel {
    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.w_id.to_le_bytes());
        out.extend_from_slice(&self.d_id.to_le_bytes());
        out.extend_from_slice(&self.threshold.to_le_bytes());
    }

    /// The input that the parameters say.
    ///
    /// # Errors
    /// As [`NewOrder::decode`].
    pub fn decode(params: &[u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::stock_level::NAME, params);
        let input = Self { w_id: reader.i16()?, d_id: reader.i8()?, threshold: reader.i16()? };
        reader.end().map(|()| input)
    }
}

/// Rows to load into one table.
#[derive(Debug, Clone)]
pub struct Load<'params> {
    /// Number of the table in the catalog.
    pub table: u16,
    /// Rows.
    pub count: u32,
    rest: &'params [u8],
}

impl<'params> Load<'params> {
    /// Parameters of a call without rows; [`Load::append`] adds them.
    pub fn begin(table: u16) -> Vec<u8> {
        let mut params = table.to_le_bytes().to_vec();
        params.extend_from_slice(&0u32.to_le_bytes());
        params
    }

    /// Adds a serialized row to the parameters of a call.
    pub fn append(params: &mut Vec<u8>, row: &[u8]) {
        if let Some(count) = params.get_mut(2..).and_then(<[u8]>::first_chunk_mut::<4>) {
            *count = (u32::from_le_bytes(*count) + 1).to_le_bytes();
        }
        params.extend_from_slice(&(row.len() as u32).to_le_bytes());
        params.extend_from_slice(row);
    }

    /// The input that the parameters say; the rows are taken by [`Load::next_row`].
    ///
    /// # Errors
    /// As [`NewOrder::decode`].
    pub fn decode(params: &'params [u8]) -> Result<Self, Abort> {
        let mut reader = Reader::new(super::load::NAME, params);
        let (table, count) = (reader.take().map(u16::from_le_bytes)?, reader.take().map(u32::from_le_bytes)?);
        Ok(Self { table, count, rest: reader.rest })
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// A user abort when the rows end too early or too late.
    pub fn next_row(&mut self) -> Result<Option<&'params [u8]>, Abort> {
        let mut reader = Reader::new(super::load::NAME, self.rest);
        if self.count == 0 {
            return reader.end().map(|()| None);
        }
        let length = u32::from_le_bytes(reader.take()?) as usize;
        let Some((row, rest)) = reader.rest.split_at_checked(length) else {
            return Err(reader.refuse(&format!("a row of {length} bytes, {} are left", reader.rest.len())));
        };
        self.rest = rest;
        self.count -= 1;
        Ok(Some(row))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn customer() -> impl Strategy<Value = CustomerBy> {
        let name = "[A-Z]{1,16}".prop_map(|name| CustomerBy::LastName(LastName::new(name.as_bytes()).unwrap()));
        prop_oneof![(1..i32::MAX).prop_map(CustomerBy::Id), name]
    }

    fn line() -> impl Strategy<Value = Line> {
        (any::<i32>(), any::<i16>(), 1..=MAX_QUANTITY).prop_map(|(i_id, supply_w_id, quantity)| Line {
            i_id,
            supply_w_id,
            quantity,
        })
    }

    /// Whatever is cut off or added is noticed; only of a name there may be more or less.
    fn whole<T: PartialEq + std::fmt::Debug>(
        bytes: &[u8],
        named: bool,
        input: &T,
        decode: fn(&[u8]) -> Result<T, Abort>,
    ) {
        assert_eq!(&decode(bytes).unwrap(), input);
        if !named {
            assert!(decode(&bytes[..bytes.len() - 1]).is_err());
            assert!(decode(&[bytes, &[0]].concat()).is_err());
        }
        for cut in 0..7.min(bytes.len()) {
            assert!(
                matches!(decode(&bytes[..cut]), Err(Abort::User(reason)) if reason.contains(&format!("{cut} bytes")))
            );
        }
    }

    proptest! {
        #[test]
        fn inputs_survive_the_wire(
            ids in (any::<i16>(), any::<i8>(), any::<i32>(), any::<i64>(), any::<i16>()),
            lines in proptest::collection::vec(line(), 1..=MAX_LINES),
            customer in customer(),
        ) {
            let (w_id, d_id, c_id, date_us, other) = ids;
            let named = matches!(customer, CustomerBy::LastName(_));
            let mut bytes = Vec::new();
            let input = NewOrder::new(w_id, d_id, c_id, date_us, &lines).unwrap();
            input.encode(&mut bytes);
            whole(&bytes, false, &input, NewOrder::decode);
            prop_assert_eq!(bytes.len(), 16 + 7 * lines.len());
            bytes.clear();
            let input = Payment { w_id, d_id, c_w_id: other, c_d_id: d_id, customer, amount_cents: c_id, date_us };
            input.encode(&mut bytes);
            whole(&bytes, named, &input, Payment::decode);
            bytes.clear();
            let input = OrderStatus { w_id, d_id, customer };
            input.encode(&mut bytes);
            whole(&bytes, named, &input, OrderStatus::decode);
            bytes.clear();
            let input = Delivery { w_id, carrier_id: d_id, date_us };
            input.encode(&mut bytes);
            whole(&bytes, false, &input, Delivery::decode);
            bytes.clear();
            let input = StockLevel { w_id, d_id, threshold: other };
            input.encode(&mut bytes);
            whole(&bytes, false, &input, StockLevel::decode);
        }

        #[test]
        fn rows_survive_the_wire(rows in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..9), table: u16) {
            let mut params = Load::begin(table);
            rows.iter().for_each(|row| Load::append(&mut params, row));
            let mut load = Load::decode(&params).unwrap();
            prop_assert_eq!((load.table, load.count as usize), (table, rows.len()));
            for row in &rows {
                prop_assert_eq!(load.next_row().unwrap(), Some(row.as_slice()));
            }
            prop_assert_eq!(load.next_row().unwrap(), None);
            let mut longer = Load { rest: &[1], ..load };
            prop_assert!(longer.next_row().is_err());
        }
    }

    #[test]
    fn impossible_orders_are_named() {
        let line = Line { i_id: 5, supply_w_id: 1, quantity: 11 };
        assert!(NewOrder::new(1, 1, 1, 0, &[]).is_none() && NewOrder::new(1, 1, 1, 0, &[line; 16]).is_none());
        let mut bytes = Vec::new();
        NewOrder::new(1, 1, 1, 0, &[line]).unwrap().encode(&mut bytes);
        let reason = |bytes: &[u8]| match NewOrder::decode(bytes) {
            Err(Abort::User(reason)) => reason.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(&bytes), "tpcc_new_order: 11 units of item 5; 1 to 10 are allowed");
        bytes[15] = 0;
        assert!(reason(&bytes).contains("an order of 0 lines; 1 to 15"));
        bytes[15] = 16;
        assert!(reason(&bytes).contains("an order of 16 lines"));
        let named = [&[1, 0, 1, 0, 0, 0, 0][..], &[b'X'; 17]].concat();
        assert!(
            matches!(OrderStatus::decode(&named), Err(Abort::User(reason)) if reason.contains("17 bytes; 1 to 16"))
        );
    }
}
