//! Whether a reply can be what its transaction displays, in the layout of the engine's procedures (`anticache_engine::procedure::tpcc`), which MySQL's
//! clients use too: whole, in range, and where something can be computed from the rest, computed right. Every system's clients check alike.

use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::generate::Input;
use anticache_engine::procedure::tpcc::params::{CustomerBy, MAX_LINES, NewOrder, OrderStatus, Payment};

/// Ten-thousandths of a tax or a discount in the whole.
const WHOLE: i64 = 10_000;
/// Fewest lines of an order (clause 2.4.1.3).
const FEWEST_LINES: i64 = 5;
/// Most of a customer's data that Payment displays, in bytes (clause 2.5.3.4).
const SHOWN_DATA_BYTES: usize = 200;

/// Reads a reply from its start; `None` when it is too short.
struct Reader<'reply>(&'reply [u8]);

impl<'reply> Reader<'reply> {
    fn raw(&mut self, bytes: usize) -> Option<&'reply [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    /// A signed little-endian number of so many bytes.
    fn number(&mut self, bytes: usize) -> Option<i64> {
        let raw = self.raw(bytes)?;
        let negative = raw.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes].copy_from_slice(raw);
        Some(i64::from_le_bytes(whole))
    }

    fn text(&mut self) -> Option<&'reply [u8]> {
        let length = *self.raw(1)?.first()?;
        self.raw(usize::from(length))
    }

    /// An address, whose ZIP code always ends with 11111 (clause 4.3.2.7).
    fn address(&mut self) -> Option<bool> {
        let streets = [self.text()?, self.text()?, self.text()?];
        let (_state, zip) = (self.raw(2)?, self.raw(9)?);
        Some(zip.ends_with(b"11111") && streets.iter().all(|street| (10..=20).contains(&street.len())))
    }
}

/// Whether a reply fits its input.
pub fn is_intact(input: &Input, reply: &[u8]) -> bool {
    let mut reader = Reader(reply);
    let fits = match input {
        Input::NewOrder(input) => new_order(input, &mut reader),
        Input::Payment(input) => payment(input, &mut reader),
        Input::OrderStatus(input) => order_status(input, &mut reader),
        Input::Delivery(_) => {
            (0..DISTRICTS).map(|_| reader.number(4).map(|o_id| o_id >= 0)).collect::<Option<Vec<_>>>().map(all)
        }
        Input::StockLevel(_) => reader.number(4).map(|low_stock| low_stock >= 0),
    };
    fits == Some(true) && reader.0.is_empty()
}

fn all(parts: Vec<bool>) -> bool {
    parts.into_iter().all(|part| part)
}

fn new_order(input: &NewOrder, reader: &mut Reader<'_>) -> Option<bool> {
    let (o_id, total_cents) = (reader.number(4)?, reader.number(8)?);
    let (w_tax, d_tax, discount) = (reader.number(2)?, reader.number(2)?, reader.number(2)?);
    let (_name, credit) = (reader.text()?, reader.raw(2)?);
    let mut fits =
        vec![o_id > 0, is_credit(credit), [w_tax, d_tax, discount].iter().all(|part| (0..WHOLE).contains(part))];
    let mut sum_cents = 0;
    for line in input.lines() {
        let (stock_left, brand) = (reader.number(2)?, reader.raw(1)?);
        let (price_cents, amount_cents, name) = (reader.number(4)?, reader.number(4)?, reader.text()?);
        fits.push(stock_left >= 0 && matches!(brand, b"B" | b"G") && (14..=24).contains(&name.len()));
        fits.push(amount_cents == price_cents * i64::from(line.quantity));
        sum_cents += amount_cents;
    }
    // Clause 2.4.2.2, rounded half up to whole cents.
    let exact = sum_cents * (WHOLE - discount) * (WHOLE + w_tax + d_tax);
    fits.push(total_cents == (exact + WHOLE * WHOLE / 2) / (WHOLE * WHOLE));
    Some(all(fits))
}

fn is_credit(text: &[u8]) -> bool {
    matches!(text, b"GC" | b"BC")
}

/// Whether a customer is the one that was asked for.
fn is_asked_for(customer: &CustomerBy, c_id: i64, last_name: &[u8]) -> bool {
    match customer {
        CustomerBy::Id(id) => c_id == i64::from(*id),
        CustomerBy::LastName(name) => c_id > 0 && name.as_slice() == last_name,
    }
}

fn payment(input: &Payment, reader: &mut Reader<'_>) -> Option<bool> {
    let mut fits = vec![reader.address()?, reader.address()?];
    let c_id = reader.number(4)?;
    let (_first, _middle, last) = (reader.text()?, reader.raw(2)?, reader.text()?);
    fits.extend([is_asked_for(&input.customer, c_id, last), reader.address()?]);
    let (phone, _since, credit) = (reader.raw(16)?, reader.number(8)?, reader.raw(2)?);
    let (_limit_cents, discount, _balance_cents) = (reader.number(8)?, reader.number(2)?, reader.number(8)?);
    fits.extend([phone.iter().all(u8::is_ascii_digit), is_credit(credit), (0..WHOLE).contains(&discount)]);
    if credit == b"BC" {
        // The payment's note stands in front.
        let note = format!("{c_id} {} {} {} {} ", input.c_d_id, input.c_w_id, input.d_id, input.w_id);
        let data = reader.text()?;
        fits.push(data.starts_with(note.as_bytes()) && data.len() <= SHOWN_DATA_BYTES);
    }
    Some(all(fits))
}

fn order_status(input: &OrderStatus, reader: &mut Reader<'_>) -> Option<bool> {
    let (c_id, _balance_cents) = (reader.number(4)?, reader.number(8)?);
    let (_first, _middle, last) = (reader.text()?, reader.raw(2)?, reader.text()?);
    let (o_id, _entry_d, carrier_id, lines) =
        (reader.number(4)?, reader.number(8)?, reader.number(1)?, reader.number(1)?);
    let mut fits = vec![
        is_asked_for(&input.customer, c_id, last),
        o_id > 0 && (0..=10).contains(&carrier_id),
        (FEWEST_LINES..=MAX_LINES as i64).contains(&lines),
    ];
    for _ in 0..lines {
        let (i_id, supply_w_id, quantity) = (reader.number(4)?, reader.number(2)?, reader.number(2)?);
        let (amount_cents, delivered) = (reader.number(4)?, reader.number(8)?);
        fits.push(i_id > 0 && supply_w_id > 0 && quantity > 0 && amount_cents >= 0);
        // An order is delivered with all its lines.
        fits.push((delivered == 0) == (carrier_id == 0));
    }
    Some(all(fits))
}

#[cfg(test)]
mod tests {
    use anticache_engine::procedure::tpcc::params::{Delivery, LastName, Line, StockLevel};

    use super::*;

    fn text(reply: &mut Vec<u8>, text: &[u8]) {
        reply.push(text.len() as u8);
        reply.extend_from_slice(text);
    }

    fn address(reply: &mut Vec<u8>) {
        [b"a street 1", b"a street 2", b"the city x"].iter().for_each(|line| text(reply, *line));
        reply.extend_from_slice(b"ST123411111");
    }

    /// An order of two lines with its reply: 3 x 2.50 and 1 x 99.99, 10 % off, 5 % and 7 % taxes.
    fn an_order() -> (Input, Vec<u8>) {
        let line = |i_id, quantity| Line { i_id, supply_w_id: 1, quantity };
        let order = NewOrder::new(1, 2, 3, 0, &[line(5, 3), line(6, 1)]).unwrap();
        let mut reply = 31_i32.to_le_bytes().to_vec();
        // 107.49 x 0.9 x 1.12 = 108.34992
        reply.extend_from_slice(&10_835_i64.to_le_bytes());
        [500_i16, 700, 1000].iter().for_each(|part| reply.extend_from_slice(&part.to_le_bytes()));
        text(&mut reply, b"BARBARBAR");
        reply.extend_from_slice(b"GC");
        for (price_cents, amount_cents) in [(250_i32, 750_i32), (9999, 9999)] {
            reply.extend_from_slice(&50_i16.to_le_bytes());
            reply.push(b'G');
            reply.extend_from_slice(&price_cents.to_le_bytes());
            reply.extend_from_slice(&amount_cents.to_le_bytes());
            text(&mut reply, b"fourteen chars");
        }
        (Input::NewOrder(order), reply)
    }

    fn a_payment(customer: CustomerBy) -> (Input, Vec<u8>) {
        let input = Payment { w_id: 1, d_id: 2, c_w_id: 3, c_d_id: 4, customer, amount_cents: 5, date_us: 0 };
        let mut reply = Vec::new();
        address(&mut reply);
        address(&mut reply);
        reply.extend_from_slice(&7_i32.to_le_bytes());
        text(&mut reply, b"Firstname");
        reply.extend_from_slice(b"OE");
        text(&mut reply, b"BARBARBAR");
        address(&mut reply);
        reply.extend_from_slice(b"0123456789012345");
        reply.extend_from_slice(&1_i64.to_le_bytes());
        reply.extend_from_slice(b"BC");
        reply.extend_from_slice(&5_000_000_i64.to_le_bytes());
        reply.extend_from_slice(&100_i16.to_le_bytes());
        reply.extend_from_slice(&(-2000_i64).to_le_bytes());
        text(&mut reply, b"7 4 3 2 1 0.05|and before");
        (Input::Payment(input), reply)
    }

    fn a_status(delivered: bool) -> (Input, Vec<u8>) {
        let input = OrderStatus { w_id: 1, d_id: 2, customer: CustomerBy::Id(7) };
        let mut reply = 7_i32.to_le_bytes().to_vec();
        reply.extend_from_slice(&(-1000_i64).to_le_bytes());
        text(&mut reply, b"Firstname");
        reply.extend_from_slice(b"OE");
        text(&mut reply, b"BARBARBAR");
        reply.extend_from_slice(&30_i32.to_le_bytes());
        reply.extend_from_slice(&1_i64.to_le_bytes());
        reply.extend_from_slice(&[u8::from(delivered), 5]);
        for _ in 0..5 {
            reply.extend_from_slice(&5_i32.to_le_bytes());
            reply.extend_from_slice(&[1, 0, 5, 0]);
            reply.extend_from_slice(&750_i32.to_le_bytes());
            reply.extend_from_slice(&i64::from(delivered).to_le_bytes());
        }
        (Input::OrderStatus(input), reply)
    }

    #[test]
    fn whole_replies_fit_and_cut_or_longer_ones_do_not() {
        let name = CustomerBy::LastName(LastName::new(b"BARBARBAR").unwrap());
        let delivery = Input::Delivery(Delivery { w_id: 1, carrier_id: 1, date_us: 0 });
        let stock_level = Input::StockLevel(StockLevel { w_id: 1, d_id: 1, threshold: 10 });
        let all = [
            an_order(),
            a_payment(CustomerBy::Id(7)),
            a_payment(name),
            a_status(true),
            a_status(false),
            (delivery, vec![0; 40]),
            (stock_level, vec![3, 0, 0, 0]),
        ];
        for (input, reply) in &all {
            assert!(is_intact(input, reply), "{input:?}");
            assert!((0..reply.len()).all(|cut| !is_intact(input, &reply[..cut])), "{input:?}");
            assert!(!is_intact(input, &[reply.as_slice(), &[0]].concat()), "{input:?}");
        }
        for (input, _) in &all {
            let fitting = all.iter().filter(|(_, reply)| is_intact(input, reply)).count();
            assert!(fitting <= 2, "{input:?} takes the replies of others");
        }
    }

    #[test]
    fn what_is_computed_wrong_is_noticed() {
        let (order, reply) = an_order();
        // The total, a tax, the discount, a price, an amount.
        for at in [4, 12, 16, 33, 37] {
            let mut wrong = reply.clone();
            wrong[at] ^= 1;
            assert!(!is_intact(&order, &wrong), "byte {at}");
        }
        let (_, payment) = a_payment(CustomerBy::Id(7));
        for customer in [CustomerBy::Id(8), CustomerBy::LastName(LastName::new(b"BARBAROUGHT").unwrap())] {
            assert!(!is_intact(&a_payment(customer).0, &payment), "{customer:?}");
        }
        // Delivered, and a line is not.
        let (status, mut reply) = a_status(true);
        let last = reply.len() - 8;
        reply[last] = 0;
        assert!(!is_intact(&status, &reply));
        let delivery = Input::Delivery(Delivery { w_id: 1, carrier_id: 1, date_us: 0 });
        assert!(!is_intact(&delivery, &[0xff; 40]), "negative numbers of orders");
    }
}
