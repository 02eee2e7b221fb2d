//! The twelve consistency conditions of clause 3.3.2, computed from the rows of all tables in any order: after a scan over the wire, or in a test.
//!
//! Conditions 10 and 12 are checked for every customer, not for a sample. Condition 11 (orders − new orders = 2100 in each district) holds in the
//! clause's words until something is delivered; checked is what it becomes then: each delivery, which CUSTOMER counts, adds one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::generate::Scale;
use super::handles;
use crate::catalog::row::number;
use crate::catalog::{Catalog, Field, TableId};
use crate::error::CatalogError;

/// Violations that are kept of each condition; all are counted.
const KEPT: u64 = 20;
/// Conditions of clause 3.3.2.
const CONDITIONS: usize = 12;

/// Where a condition is violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A warehouse.
    Warehouse(i16),
    /// A district: warehouse, number.
    District(i16, i8),
    /// A customer: warehouse, district, number.
    Customer(i16, i8, i32),
    /// An order: warehouse, district, number.
    Order(i16, i8, i32),
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warehouse(w_id) => write!(out, "warehouse {w_id}"),
            Self::District(w_id, d_id) => write!(out, "district {w_id}/{d_id}"),
            Self::Customer(w_id, d_id, c_id) => write!(out, "customer {w_id}/{d_id}/{c_id}"),
            Self::Order(w_id, d_id, o_id) => write!(out, "order {w_id}/{d_id}/{o_id}"),
        }
    }
}

/// A condition that does not hold somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Number of the condition: n of clause 3.3.2.n.
    pub condition: usize,
    /// Where.
    pub place: Place,
    /// The values that should agree.
    pub values: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "clause 3.3.2.{}, {}: {}", self.condition, self.place, self.values)
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Violations, at most twenty of each condition.
    pub violations: Vec<Violation>,
    /// How many there are of each condition; condition n at n − 1.
    pub counts: [u64; CONDITIONS],
}

impl Report {
    /// Whether all conditions hold.
    pub fn is_consistent(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    fn expect(&mut self, condition: usize, place: Place, holds: bool, values: impl FnOnce() -> String) {
        if holds {
            return;
        }
        self.counts[condition - 1] += 1;
        if self.counts[condition - 1] <= KEPT {
            self.violations.push(Violation { condition, place, values: values() });
        }
    }

    fn equal(&mut self, condition: usize, place: Place, (left_is, left): (&str, i64), (right_is, right): (&str, i64)) {
        self.expect(condition, place, left == right, || format!("{left_is} is {left}, {right_is} {right}"));
    }
}

type DistrictId = (i16, i8);
type RowId = (i16, i8, i32);

#[derive(Default)]
struct WarehouseSums {
    ytd_cents: i64,
    district_ytd_cents: i64,
    history_cents: i64,
}

#[derive(Default)]
struct DistrictSums {
    next_o_id: i64,
    ytd_cents: i64,
    history_cents: i64,
    orders: i64,
    newest_order: i64,
    new_orders: i64,
    newest_new_order: i64,
    oldest_new_order: i64,
    ol_cnt: i64,
    order_lines: i64,
    deliveries: i64,
}

#[derive(Default)]
struct OrderSums {
    /// Customer, carrier unknown, number of lines; `None` = ORDERS has no such row.
    row: Option<(i32, bool, i64)>,
    is_new: bool,
    lines: i64,
    undelivered_lines: i64,
    delivered_cents: i64,
}

#[derive(Default)]
struct CustomerSums {
    /// Balance and year-to-date payments in cents; `None` = CUSTOMER has no such row.
    row: Option<(i64, i64)>,
    history_cents: i64,
    delivered_cents: i64,
}

/// Takes rows, and in the end says what does not hold.
pub struct Checker {
    warehouse: handles::Warehouse,
    district: handles::District,
    customer: handles::Customer,
    history: handles::History,
    new_order: handles::NewOrders,
    order: handles::Orders,
    order_line: handles::OrderLine,
    warehouses: BTreeMap<i16, WarehouseSums>,
    districts: BTreeMap<DistrictId, DistrictSums>,
    orders: HashMap<RowId, OrderSums>,
    customers: HashMap<RowId, CustomerSums>,
}

/// The fixed part of a serialized row, read by column.
#[derive(Clone, Copy)]
struct Row<'row>(&'row [u8]);

impl Row<'_> {
    fn number(self, field: Field) -> i64 {
        number(&self.0[field.offset..field.offset + field.bytes])
    }

    fn is_null(self, field: Field) -> bool {
        field.null.is_some_and(|(byte, mask)| self.0[byte] & mask != 0)
    }

    fn district(self, w_id: Field, d_id: Field) -> DistrictId {
        (self.number(w_id) as i16, self.number(d_id) as i8)
    }

    fn id(self, [w_id, d_id, id]: [Field; 3]) -> RowId {
        (self.number(w_id) as i16, self.number(d_id) as i8, self.number(id) as i32)
    }
}

impl Checker {
    /// A check of a database with this catalog.
    ///
    /// # Errors
    /// When the catalog lacks a table or column of TPC-C's.
    pub fn new(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            warehouse: handles::Warehouse::resolve(catalog)?,
            district: handles::District::resolve(catalog)?,
            customer: handles::Customer::resolve(catalog)?,
            history: handles::History::resolve(catalog)?,
            new_order: handles::NewOrders::resolve(catalog)?,
            order: handles::Orders::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
            warehouses: BTreeMap::new(),
            districts: BTreeMap::new(),
            orders: HashMap::new(),
            customers: HashMap::new(),
        })
    }

    /// Takes a serialized row of a table. ITEM and STOCK have no conditions.
    ///
    /// # Panics
    /// If the row is shorter than its table's fixed part.
    pub fn add(&mut self, table: TableId, row: &[u8]) {
        let row = Row(row);
        match table {
            table if table == self.warehouse.table => self.add_warehouse(row),
            table if table == self.district.table => self.add_district(row),
            table if table == self.customer.table => self.add_customer(row),
            table if table == self.history.table => self.add_history(row),
            table if table == self.new_order.table => self.add_new_order(row),
            table if table == self.order.table => self.add_order(row),
            table if table == self.order_line.table => self.add_order_line(row),
            _ => {}
        }
    }

    fn add_warehouse(&mut self, row: Row<'_>) {
        let sums = self.warehouses.entry(row.number(self.warehouse.w_id) as i16).or_default();
        sums.ytd_cents += row.number(self.warehouse.w_ytd);
    }

    fn add_district(&mut self, row: Row<'_>) {
        let id = row.district(self.district.d_w_id, self.district.d_id);
        let ytd_cents = row.number(self.district.d_ytd);
        let sums = self.districts.entry(id).or_default();
        sums.ytd_cents += ytd_cents;
        sums.next_o_id = row.number(self.district.d_next_o_id);
        self.warehouses.entry(id.0).or_default().district_ytd_cents += ytd_cents;
    }

    fn add_customer(&mut self, row: Row<'_>) {
        let columns = &self.customer;
        let id = row.id([columns.c_w_id, columns.c_d_id, columns.c_id]);
        let money = (row.number(columns.c_balance), row.number(columns.c_ytd_payment));
        self.customers.entry(id).or_default().row = Some(money);
        self.districts.entry((id.0, id.1)).or_default().deliveries += row.number(columns.c_delivery_cnt);
    }

    fn add_history(&mut self, row: Row<'_>) {
        let columns = &self.history;
        let cents = row.number(columns.h_amount);
        let (w_id, d_id) = row.district(columns.h_w_id, columns.h_d_id);
        self.warehouses.entry(w_id).or_default().history_cents += cents;
        self.districts.entry((w_id, d_id)).or_default().history_cents += cents;
        let customer = row.id([columns.h_c_w_id, columns.h_c_d_id, columns.h_c_id]);
        self.customers.entry(customer).or_default().history_cents += cents;
    }

    fn add_new_order(&mut self, row: Row<'_>) {
        let columns = &self.new_order;
        let id = row.id([columns.no_w_id, columns.no_d_id, columns.no_o_id]);
        self.orders.entry(id).or_default().is_new = true;
        let (sums, o_id) = (self.districts.entry((id.0, id.1)).or_default(), i64::from(id.2));
        let first = sums.new_orders == 0;
        sums.oldest_new_order = if first { o_id } else { sums.oldest_new_order.min(o_id) };
        sums.newest_new_order = if first { o_id } else { sums.newest_new_order.max(o_id) };
        sums.new_orders += 1;
    }

    fn add_order(&mut self, row: Row<'_>) {
        let columns = &self.order;
        let id = row.id([columns.o_w_id, columns.o_d_id, columns.o_id]);
        let ol_cnt = row.number(columns.o_ol_cnt);
        let c_id = row.number(columns.o_c_id) as i32;
        self.orders.entry(id).or_default().row = Some((c_id, row.is_null(columns.o_carrier_id), ol_cnt));
        let sums = self.districts.entry((id.0, id.1)).or_default();
        sums.orders += 1;
        sums.newest_order = sums.newest_order.max(i64::from(id.2));
        sums.ol_cnt += ol_cnt;
    }

    fn add_order_line(&mut self, row: Row<'_>) {
        let columns = &self.order_line;
        let id = row.id([columns.ol_w_id, columns.ol_d_id, columns.ol_o_id]);
        let sums = self.orders.entry(id).or_default();
        sums.lines += 1;
        if row.is_null(columns.ol_delivery_d) {
            sums.undelivered_lines += 1;
        } else {
            sums.delivered_cents += row.number(columns.ol_amount);
        }
        self.districts.entry((id.0, id.1)).or_default().order_lines += 1;
    }

    /// What does not hold, of a database that was loaded at this scale.
    pub fn finish(mut self, scale: &Scale) -> Report {
        let mut report = Report::default();
        for (&w_id, sums) in &self.warehouses {
            let place = Place::Warehouse(w_id);
            let ytd = ("W_YTD", sums.ytd_cents);
            report.equal(1, place, ytd, ("the sum of D_YTD", sums.district_ytd_cents));
            report.equal(8, place, ytd, ("the sum of H_AMOUNT", sums.history_cents));
        }
        let delivered_when_loaded = i64::from(scale.first_undelivered()) - 1;
        for (&(w_id, d_id), sums) in &self.districts {
            check_district(&mut report, Place::District(w_id, d_id), sums, delivered_when_loaded);
        }
        // In order, so that the same database always gives the same report.
        let mut orders: Vec<_> = self.orders.iter().collect();
        orders.sort_unstable_by_key(|(id, _)| **id);
        for (&id, sums) in orders {
            check_order(&mut report, id, sums);
            if let Some((c_id, ..)) = sums.row {
                self.customers.entry((id.0, id.1, c_id)).or_default().delivered_cents += sums.delivered_cents;
            }
        }
        let mut customers: Vec<_> = self.customers.iter().collect();
        customers.sort_unstable_by_key(|(id, _)| **id);
        for (&(w_id, d_id, c_id), sums) in customers {
            check_customer(&mut report, Place::Customer(w_id, d_id, c_id), sums);
        }
        report
    }
}

fn check_district(report: &mut Report, place: Place, sums: &DistrictSums, delivered_when_loaded: i64) {
    let newest = ("D_NEXT_O_ID − 1", sums.next_o_id - 1);
    report.equal(2, place, newest, ("max(O_ID)", sums.newest_order));
    if sums.new_orders > 0 {
        report.equal(2, place, newest, ("max(NO_O_ID)", sums.newest_new_order));
        let span = sums.newest_new_order - sums.oldest_new_order + 1;
        report.equal(3, place, ("max(NO_O_ID) − min(NO_O_ID) + 1", span), ("rows of NEW_ORDER", sums.new_orders));
    }
    report.equal(4, place, ("the sum of O_OL_CNT", sums.ol_cnt), ("rows of ORDER_LINE", sums.order_lines));
    report.equal(9, place, ("D_YTD", sums.ytd_cents), ("the sum of H_AMOUNT", sums.history_cents));
    let delivered = ("rows of ORDERS − rows of NEW_ORDER", sums.orders - sums.new_orders);
    let expected = delivered_when_loaded + sums.deliveries;
    report.equal(11, place, delivered, ("loaded as delivered + the sum of C_DELIVERY_CNT", expected));
}

fn check_order(report: &mut Report, (w_id, d_id, o_id): RowId, sums: &OrderSums) {
    let place = Place::Order(w_id, d_id, o_id);
    let Some((_, carrier_unknown, ol_cnt)) = sums.row else {
        report.expect(5, place, !sums.is_new, || "NEW_ORDER has a row, ORDERS has none".to_owned());
        report.expect(7, place, sums.lines == 0, || format!("ORDER_LINE has {} rows, ORDERS has none", sums.lines));
        return;
    };
    report.expect(5, place, carrier_unknown == sums.is_new, || {
        format!("O_CARRIER_ID is NULL: {carrier_unknown}, NEW_ORDER has a row: {}", sums.is_new)
    });
    report.equal(6, place, ("O_OL_CNT", ol_cnt), ("rows of ORDER_LINE", sums.lines));
    let undelivered = if carrier_unknown { sums.lines } else { 0 };
    report.expect(7, place, sums.undelivered_lines == undelivered, || {
        let (null, lines) = (sums.undelivered_lines, sums.lines);
        format!("O_CARRIER_ID is NULL: {carrier_unknown}, OL_DELIVERY_D is NULL in {null} of {lines} lines")
    });
}

fn check_customer(report: &mut Report, place: Place, sums: &CustomerSums) {
    let Some((balance_cents, paid_cents)) = sums.row else {
        let (delivered, paid) = (sums.delivered_cents, sums.history_cents);
        let values = || format!("CUSTOMER has no row, but the sum of OL_AMOUNT is {delivered}, of H_AMOUNT {paid}");
        return report.expect(10, place, false, values);
    };
    let owed = sums.delivered_cents - sums.history_cents;
    report.equal(10, place, ("C_BALANCE", balance_cents), ("the sum of OL_AMOUNT − the sum of H_AMOUNT", owed));
    let balance = ("C_BALANCE + C_YTD_PAYMENT", balance_cents + paid_cents);
    report.equal(12, place, balance, ("the sum of OL_AMOUNT", sums.delivered_cents));
}

#[cfg(test)]
mod tests {
    use super::super::generate::{Population, TpccTable};
    use super::*;

    const SCALE: Scale = Scale { warehouses: 2, items: 100, customers_per_district: 30, orders_per_district: 30 };

    /// Checks a freshly loaded database in which `damage` changes, removes (returns false) or keeps rows, and `extra` rows are added.
    fn check(mut damage: impl FnMut(TpccTable, &mut Vec<u8>) -> bool, extra: &[(TpccTable, Vec<u8>)]) -> Report {
        let catalog = catalog();
        let population = Population::new(&catalog, SCALE, 3).unwrap();
        let mut checker = Checker::new(&catalog).unwrap();
        for table in TpccTable::ALL {
            for w_id in 1..=2 {
                for mut row in population.rows(table, w_id) {
                    if damage(table, &mut row) {
                        checker.add(population.table_id(table), &row);
                    }
                }
            }
        }
        extra.iter().for_each(|(table, row)| checker.add(population.table_id(*table), row));
        checker.finish(&SCALE)
    }

    fn catalog() -> Catalog {
        Catalog::from_sql(include_str!("../../../../workloads/schemas/tpcc.sql")).unwrap()
    }

    fn field(table: TpccTable, column: &str) -> Field {
        let catalog = catalog();
        catalog.table(catalog.table_id(table.name()).unwrap()).field(column).unwrap()
    }

    fn has(row: &[u8], columns: &[(Field, i64)]) -> bool {
        columns.iter().all(|&(field, value)| Row(row).number(field) == value)
    }

    fn set(row: &mut [u8], field: Field, value: i64) {
        row[field.offset..field.offset + field.bytes].copy_from_slice(&value.to_le_bytes()[..field.bytes]);
    }

    /// Damages the one row of a table that has these values, and returns what is reported.
    fn damaged(table: TpccTable, of: &[(&str, i64)], change: impl Fn(&mut Vec<u8>) -> bool) -> Vec<String> {
        let of: Vec<_> = of.iter().map(|&(column, value)| (field(table, column), value)).collect();
        let mut damages = 0;
        let report = check(
            |other, row| {
                if other != table || !has(row, &of) || damages > 0 {
                    return true;
                }
                damages += 1;
                change(row)
            },
            &[],
        );
        assert_eq!((damages, report.is_consistent()), (1, false));
        report.violations.iter().map(ToString::to_string).collect()
    }

    fn changed(table: TpccTable, of: &[(&str, i64)], column: &str, by: i64) -> Vec<String> {
        let column = field(table, column);
        damaged(table, of, |row| {
            let value = Row(row).number(column) + by;
            set(row, column, value);
            true
        })
    }

    #[test]
    fn a_loaded_database_is_consistent() {
        assert_eq!(check(|_, _| true, &[]), Report::default());
    }

    #[test]
    fn conditions_1_8_and_9_sum_what_was_paid() {
        assert_eq!(
            changed(TpccTable::Warehouse, &[("w_id", 2)], "w_ytd", 1),
            [
                "clause 3.3.2.1, warehouse 2: W_YTD is 300001, the sum of D_YTD 300000",
                "clause 3.3.2.8, warehouse 2: W_YTD is 300001, the sum of H_AMOUNT 300000"
            ]
        );
        assert_eq!(
            changed(TpccTable::District, &[("d_w_id", 1), ("d_id", 7)], "d_ytd", -5),
            [
                "clause 3.3.2.1, warehouse 1: W_YTD is 300000, the sum of D_YTD 299995",
                "clause 3.3.2.9, district 1/7: D_YTD is 29995, the sum of H_AMOUNT 30000"
            ]
        );
    }

    #[test]
    fn conditions_2_and_3_count_orders_without_gaps() {
        assert_eq!(
            changed(TpccTable::District, &[("d_w_id", 1), ("d_id", 7)], "d_next_o_id", 1),
            [
                "clause 3.3.2.2, district 1/7: D_NEXT_O_ID − 1 is 31, max(O_ID) 30",
                "clause 3.3.2.2, district 1/7: D_NEXT_O_ID − 1 is 31, max(NO_O_ID) 30"
            ]
        );
        let gone = damaged(TpccTable::NewOrder, &[("no_w_id", 1), ("no_d_id", 2), ("no_o_id", 25)], |_| false);
        assert_eq!(
            gone,
            [
                "clause 3.3.2.3, district 1/2: max(NO_O_ID) − min(NO_O_ID) + 1 is 9, rows of NEW_ORDER 8",
                "clause 3.3.2.11, district 1/2: rows of ORDERS − rows of NEW_ORDER is 22, loaded as delivered + the sum of C_DELIVERY_CNT 21",
                "clause 3.3.2.5, order 1/2/25: O_CARRIER_ID is NULL: true, NEW_ORDER has a row: false"
            ]
        );
    }

    #[test]
    fn conditions_4_and_6_count_lines() {
        let line = [("ol_w_id", 2), ("ol_d_id", 10), ("ol_o_id", 3), ("ol_number", 1)];
        let gone = damaged(TpccTable::OrderLine, &line, |_| false);
        assert!(gone[0].starts_with("clause 3.3.2.4, district 2/10: the sum of O_OL_CNT is"), "{gone:?}");
        assert!(gone[1].starts_with("clause 3.3.2.6, order 2/10/3: O_OL_CNT is"), "{gone:?}");
        assert_eq!(gone.len(), 2);
    }

    #[test]
    fn conditions_5_and_7_tell_what_is_delivered() {
        let carrier = field(TpccTable::Orders, "o_carrier_id");
        let (byte, mask) = carrier.null.unwrap();
        let flip = |row: &mut Vec<u8>| {
            row[byte] ^= mask;
            true
        };
        let of = |o_id| [("o_w_id", 1), ("o_d_id", 1), ("o_id", o_id)];
        let lost = damaged(TpccTable::Orders, &of(3), flip);
        assert_eq!(lost[0], "clause 3.3.2.5, order 1/1/3: O_CARRIER_ID is NULL: true, NEW_ORDER has a row: false");
        assert!(
            lost[1]
                .starts_with("clause 3.3.2.7, order 1/1/3: O_CARRIER_ID is NULL: true, OL_DELIVERY_D is NULL in 0 of")
        );
        let early = damaged(TpccTable::Orders, &of(30), flip);
        assert_eq!(early[0], "clause 3.3.2.5, order 1/1/30: O_CARRIER_ID is NULL: false, NEW_ORDER has a row: true");
        assert!(early[1].starts_with("clause 3.3.2.7, order 1/1/30"));
        let (byte, mask) = field(TpccTable::OrderLine, "ol_delivery_d").null.unwrap();
        let line = [("ol_w_id", 1), ("ol_d_id", 1), ("ol_o_id", 3), ("ol_number", 2)];
        let undelivered = damaged(TpccTable::OrderLine, &line, |row| {
            row[byte] |= mask;
            true
        });
        assert_eq!(undelivered.len(), 1);
        assert!(
            undelivered[0].contains("3.3.2.7, order 1/1/3: O_CARRIER_ID is NULL: false, OL_DELIVERY_D is NULL in 1 of")
        );
    }

    #[test]
    fn conditions_10_and_12_balance_every_customer() {
        let customer = [("c_w_id", 2), ("c_d_id", 3), ("c_id", 4)];
        let both = [
            "clause 3.3.2.10, customer 2/3/4: C_BALANCE is -993, the sum of OL_AMOUNT − the sum of H_AMOUNT -1000",
            "clause 3.3.2.12, customer 2/3/4: C_BALANCE + C_YTD_PAYMENT is 7, the sum of OL_AMOUNT 0",
        ];
        assert_eq!(changed(TpccTable::Customer, &customer, "c_balance", 7), both);
        assert_eq!(changed(TpccTable::Customer, &customer, "c_ytd_payment", 7), both[1..]);
        let paid = changed(TpccTable::History, &[("h_c_w_id", 2), ("h_c_d_id", 3), ("h_c_id", 4)], "h_amount", 7);
        assert_eq!(paid.len(), 3);
        for (violation, condition) in
            paid.iter().zip(["3.3.2.8, warehouse 2", "3.3.2.9, district 2/3", "3.3.2.10, customer 2/3/4"])
        {
            assert!(violation.contains(condition), "{violation}");
        }
        let line = [("ol_w_id", 1), ("ol_d_id", 1), ("ol_o_id", 3), ("ol_number", 2)];
        let sold = changed(TpccTable::OrderLine, &line, "ol_amount", 100);
        assert!(sold[0].contains("3.3.2.10, customer 1/1/") && sold[1].contains("3.3.2.12, customer 1/1/"), "{sold:?}");
    }

    #[test]
    fn condition_11_counts_deliveries() {
        let customer = [("c_w_id", 2), ("c_d_id", 3), ("c_id", 4)];
        assert_eq!(
            changed(TpccTable::Customer, &customer, "c_delivery_cnt", 1),
            [
                "clause 3.3.2.11, district 2/3: rows of ORDERS − rows of NEW_ORDER is 21, loaded as delivered + the sum of C_DELIVERY_CNT 22"
            ]
        );
    }

    #[test]
    fn rows_that_belong_to_nothing_are_reported() {
        let order = [("o_w_id", 1), ("o_d_id", 1), ("o_id", 30)];
        let gone = damaged(TpccTable::Orders, &order, |_| false).join("\n");
        assert!(gone.contains("3.3.2.5, order 1/1/30: NEW_ORDER has a row, ORDERS has none"), "{gone}");
        assert!(gone.contains("3.3.2.7, order 1/1/30: ORDER_LINE has"), "{gone}");
        let customer = damaged(TpccTable::Customer, &[("c_w_id", 2), ("c_d_id", 3), ("c_id", 4)], |_| false);
        assert_eq!(customer.len(), 1);
        assert!(customer[0].contains("3.3.2.10, customer 2/3/4: CUSTOMER has no row"), "{customer:?}");
    }

    #[test]
    fn many_violations_are_counted_and_some_kept() {
        let balance = field(TpccTable::Customer, "c_balance");
        let damage = |table, row: &mut Vec<u8>| {
            if table == TpccTable::Customer {
                set(row, balance, 0);
            }
            true
        };
        let report = check(damage, &[]);
        assert_eq!((report.counts[9], report.counts[11], report.violations.len()), (600, 600, 40));
        // A second line of the same number is a row too many.
        let catalog = catalog();
        let population = Population::new(&catalog, SCALE, 3).unwrap();
        let twice = population.rows(TpccTable::OrderLine, 1).next().unwrap();
        let report = check(|_, _| true, &[(TpccTable::OrderLine, twice)]);
        assert_eq!((report.counts[3], report.counts[5], report.violations.len()), (1, 1, 2));
    }
}
