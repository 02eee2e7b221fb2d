//! Inputs of the five transactions (clauses 2.4.1 to 2.8.1) and their mix (clause 5.2.4.2).

use super::random::Purpose;
use super::{Constants, Random, Scale, last_name};
use crate::procedure::tpcc::params::{CustomerBy, Delivery, LastName, Line, MAX_LINES, NewOrder, OrderStatus, Payment};
use crate::procedure::tpcc::params::{MAX_QUANTITY, StockLevel};
use crate::procedure::tpcc::{DISTRICTS, delivery, new_order, order_status, payment, stock_level};

/// The five transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransactionKind {
    /// New-Order.
    NewOrder,
    /// Payment.
    Payment,
    /// Order-Status.
    OrderStatus,
    /// Delivery.
    Delivery,
    /// Stock-Level.
    StockLevel,
}

impl TransactionKind {
    /// All of them, in the specification's order.
    pub const ALL: [Self; 5] = [Self::NewOrder, Self::Payment, Self::OrderStatus, Self::Delivery, Self::StockLevel];

    /// Name of its procedure.
    pub const fn procedure(self) -> &'static str {
        match self {
            Self::NewOrder => new_order::NAME,
            Self::Payment => payment::NAME,
            Self::OrderStatus => order_status::NAME,
            Self::Delivery => delivery::NAME,
            Self::StockLevel => stock_level::NAME,
        }
    }
}

/// One transaction's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// New-Order.
    NewOrder(NewOrder),
    /// Payment.
    Payment(Payment),
    /// Order-Status.
    OrderStatus(OrderStatus),
    /// Delivery.
    Delivery(Delivery),
    /// Stock-Level.
    StockLevel(StockLevel),
}

impl Input {
    /// Of which transaction it is.
    pub fn kind(&self) -> TransactionKind {
        match self {
            Self::NewOrder(_) => TransactionKind::NewOrder,
            Self::Payment(_) => TransactionKind::Payment,
            Self::OrderStatus(_) => TransactionKind::OrderStatus,
            Self::Delivery(_) => TransactionKind::Delivery,
            Self::StockLevel(_) => TransactionKind::StockLevel,
        }
    }

    /// Its home warehouse, to whose partition it is sent.
    pub fn home(&self) -> i16 {
        match self {
            Self::NewOrder(input) => input.w_id,
            Self::Payment(input) => input.w_id,
            Self::OrderStatus(input) => input.w_id,
            Self::Delivery(input) => input.w_id,
            Self::StockLevel(input) => input.w_id,
        }
    }

    /// Appends the parameters of a call.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::NewOrder(input) => input.encode(out),
            Self::Payment(input) => input.encode(out),
            Self::OrderStatus(input) => input.encode(out),
            Self::Delivery(input) => input.encode(out),
            Self::StockLevel(input) => input.encode(out),
        }
    }
}

/// Which warehouses a terminal's transactions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// The terminal's own only, as in the paper (§4.1).
    HomeOnly,
    /// The specification's: 1 % of all lines are supplied by, 15 % of all payments come from customers of another warehouse.
    WithRemote,
    /// So many percent of all lines, and of all payments.
    Remote(u8),
}

const DECK: [TransactionKind; 23] = {
    let mut deck = [TransactionKind::NewOrder; 23];
    let mut at = 10;
    while at < 20 {
        deck[at] = TransactionKind::Payment;
        at += 1;
    }
    deck[20] = TransactionKind::OrderStatus;
    deck[21] = TransactionKind::Delivery;
    deck[22] = TransactionKind::StockLevel;
    deck
};

/// Where randomness comes from. The constants of NURand belong to the population (clause 2.1.6.1), so that every run of a database has its hot items
/// and customers; what is drawn belongs to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// That of the population.
    pub population: u64,
    /// Of the inputs.
    pub inputs: u64,
}

impl Seeds {
    /// The same for both.
    pub const fn both(seed: u64) -> Self {
        Self { population: seed, inputs: seed }
    }
}

/// A terminal's endless stream of inputs, reproducible from its name alone.
#[derive(Debug, Clone)]
pub struct Terminal {
    random: Random,
    constants: Constants,
    scale: Scale,
    mix: Mix,
    w_id: i16,
    d_id: i8,
    deck: [TransactionKind; DECK.len()],
    played: usize,
}

impl Terminal {
    /// Terminal number `index`, at home in a warehouse and a district: terminals go through all districts of the first warehouse, then of the next,
    /// and after the last from the beginning, so that several may share a home.
    pub fn new(scale: Scale, mix: Mix, seeds: Seeds, index: u64) -> Self {
        let w_id = (index / DISTRICTS as u64 % scale.warehouses as u64) as i16 + 1;
        let d_id = (index % DISTRICTS as u64) as i8 + 1;
        let random = Random::new(seeds.inputs, Purpose::Terminal, index);
        Self::at(scale, mix, Constants::new(seeds.population), random, (w_id, d_id))
    }

    fn at(scale: Scale, mix: Mix, constants: Constants, random: Random, (w_id, d_id): (i16, i8)) -> Self {
        Self { random, constants, scale, mix, w_id, d_id, deck: DECK, played: DECK.len() }
    }

    /// The next input, entered at a time in microseconds since 1970.
    pub fn next(&mut self, now_us: i64) -> Input {
        let kind = self.next_kind();
        self.draw(kind, now_us)
    }

    /// The next transaction of the mix (clause 5.2.4.2: cards of a shuffled deck); [`Terminal::draw`] gives its input.
    pub fn next_kind(&mut self) -> TransactionKind {
        if self.played == DECK.len() {
            self.random.shuffle(&mut self.deck);
            self.played = 0;
        }
        let kind = self.deck[self.played];
        self.played += 1;
        kind
    }

    /// An input of one transaction, whatever the mix.
    pub fn draw(&mut self, kind: TransactionKind, now_us: i64) -> Input {
        match kind {
            TransactionKind::NewOrder => Input::NewOrder(self.new_order(now_us)),
            TransactionKind::Payment => Input::Payment(self.payment(now_us)),
            TransactionKind::OrderStatus => {
                Input::OrderStatus(OrderStatus { w_id: self.w_id, d_id: self.district(), customer: self.customer() })
            }
            TransactionKind::Delivery => Input::Delivery(Delivery {
                w_id: self.w_id,
                carrier_id: self.random.uniform(1, 10) as i8,
                date_us: now_us,
            }),
            TransactionKind::StockLevel => Input::StockLevel(StockLevel {
                w_id: self.w_id,
                d_id: self.d_id,
                threshold: self.random.uniform(10, 20) as i16,
            }),
        }
    }

    fn district(&mut self) -> i8 {
        self.random.uniform(1, i64::from(DISTRICTS)) as i8
    }

    fn customer_id(&mut self) -> i32 {
        let customers = i64::from(self.scale.customers_per_district);
        self.random.skewed(Constants::CUSTOMER_A, self.constants.customer, 1, customers) as i32
    }

    /// By last name in 60 % of the cases.
    fn customer(&mut self) -> CustomerBy {
        if self.random.percent(60) {
            let names = self.scale.last_names();
            let number = self.random.skewed(Constants::LAST_A, self.constants.last_run, 0, names - 1);
            if let Some(name) = LastName::new(&last_name(number)) {
                return CustomerBy::LastName(name);
            }
        }
        CustomerBy::Id(self.customer_id())
    }

    /// Another warehouse than the terminal's in `percent` of the cases, when there is one and the mix allows it.
    fn warehouse(&mut self, percent: i64) -> i16 {
        let percent = if let Mix::Remote(percent) = self.mix { i64::from(percent) } else { percent };
        let remote = self.random.percent(percent);
        if !remote || self.mix == Mix::HomeOnly || self.scale.warehouses == 1 {
            return self.w_id;
        }
        let other = self.random.uniform(1, i64::from(self.scale.warehouses) - 1) as i16;
        other + i16::from(other >= self.w_id)
    }

    fn new_order(&mut self, now_us: i64) -> NewOrder {
        let (d_id, c_id) = (self.district(), self.customer_id());
        let line_count = self.random.uniform(5, MAX_LINES as i64) as usize;
        let with_unused_item = self.random.percent(1);
        let items = i64::from(self.scale.items);
        let mut lines = [Line::default(); MAX_LINES];
        for line in &mut lines[..line_count] {
            *line = Line {
                i_id: self.random.skewed(Constants::ITEM_A, self.constants.item, 1, items) as i32,
                supply_w_id: self.warehouse(1),
                quantity: self.random.uniform(1, i64::from(MAX_QUANTITY)) as i8,
            };
        }
        if with_unused_item {
            lines[line_count - 1].i_id = self.scale.items + 1;
        }
        let order = NewOrder::new(self.w_id, d_id, c_id, now_us, &lines[..line_count]);
        order.expect("5 to 15 lines are an order")
    }

    fn payment(&mut self, now_us: i64) -> Payment {
        let d_id = self.district();
        let c_w_id = self.warehouse(15);
        let c_d_id = if c_w_id == self.w_id { d_id } else { self.district() };
        let customer = self.customer();
        let amount_cents = self.random.uniform(100, 500_000) as i32;
        Payment { w_id: self.w_id, d_id, c_w_id, c_d_id, customer, amount_cents, date_us: now_us }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const SMALL: Scale = Scale { warehouses: 3, items: 500, customers_per_district: 90, orders_per_district: 90 };

    fn inputs(mix: Mix, index: u64, count: usize) -> Vec<Input> {
        let mut terminal = Terminal::new(SMALL, mix, Seeds::both(9), index);
        (0..count).map(|now_us| terminal.next(now_us as i64)).collect()
    }

    #[test]
    fn every_deck_has_the_mix() {
        let inputs = inputs(Mix::HomeOnly, 4, 23 * 100);
        let mut orders = HashSet::new();
        for deck in inputs.chunks(23) {
            let kinds: Vec<_> = deck.iter().map(Input::kind).collect();
            let count = |kind| kinds.iter().filter(|&&other| other == kind).count();
            assert_eq!(TransactionKind::ALL.map(count), [10, 10, 1, 1, 1]);
            orders.insert(kinds);
        }
        assert!(orders.len() > 95, "{} different orders of 100 decks", orders.len());
    }

    #[test]
    fn a_terminal_is_its_name() {
        let one = inputs(Mix::WithRemote, 13, 500);
        assert_eq!(one, inputs(Mix::WithRemote, 13, 500));
        assert_ne!(one, inputs(Mix::WithRemote, 14, 500));
        for other in [Seeds { population: 8, inputs: 9 }, Seeds { population: 9, inputs: 8 }] {
            let mut terminal = Terminal::new(SMALL, Mix::WithRemote, other, 13);
            let drawn: Vec<_> = (0..500).map(|now_us| terminal.next(now_us)).collect();
            assert_ne!(drawn, one, "{other:?}");
        }
        let mut homes = HashMap::new();
        for index in 0..30 {
            let terminal = Terminal::new(SMALL, Mix::HomeOnly, Seeds::both(9), index);
            homes.entry((terminal.w_id, terminal.d_id)).or_insert(index);
        }
        assert_eq!(homes.len(), 30);
    }

    #[test]
    fn shares_are_the_clauses() {
        let (mut lines, mut remote_lines, mut orders, mut rolled_back) = (0, 0, 0, 0);
        let (mut payments, mut remote_payments, mut named) = (0, 0, 0);
        for input in inputs(Mix::WithRemote, 13, 46_000) {
            match input {
                Input::NewOrder(order) => {
                    orders += 1;
                    lines += order.lines().len();
                    remote_lines += order.lines().iter().filter(|line| line.supply_w_id != 2).count();
                    let (last, others) = order.lines().split_last().unwrap();
                    rolled_back += usize::from(last.i_id == 501);
                    assert!((5..=15).contains(&order.lines().len()) && (1..=90).contains(&order.c_id));
                    assert!(others.iter().all(|line| (1..=500).contains(&line.i_id)));
                    assert!(order.lines().iter().all(|line| (1..=3).contains(&line.supply_w_id)));
                }
                Input::Payment(payment) => {
                    payments += 1;
                    remote_payments += usize::from(payment.c_w_id != 2);
                    named += usize::from(matches!(payment.customer, CustomerBy::LastName(_)));
                    assert!((100..=500_000).contains(&payment.amount_cents) && payment.w_id == 2);
                    assert!(payment.c_w_id != 2 || payment.c_d_id == payment.d_id);
                }
                Input::StockLevel(input) => assert!((10..=20).contains(&input.threshold) && input.d_id == 4),
                Input::Delivery(input) => assert!((1..=10).contains(&input.carrier_id)),
                Input::OrderStatus(_) => {}
            }
        }
        assert_eq!((orders, payments), (20_000, 20_000));
        assert!((140..260).contains(&rolled_back), "{rolled_back} of {orders} rolled back");
        assert!((0.008..0.012).contains(&(remote_lines as f64 / lines as f64)), "{remote_lines} of {lines} remote");
        assert!((2_700..3_300).contains(&remote_payments), "{remote_payments} of {payments} remote");
        assert!((11_600..12_400).contains(&named), "{named} of {payments} by name");
        assert!((9.9..10.1).contains(&(lines as f64 / orders as f64)), "{lines} lines in {orders} orders");
    }

    #[test]
    fn as_many_are_remote_as_asked_for() {
        let (mut lines, mut remote, mut payments, mut remote_payments) = (0, 0, 0, 0);
        for input in inputs(Mix::Remote(50), 13, 4600) {
            assert_eq!(input.home(), 2);
            match input {
                Input::NewOrder(order) => {
                    lines += order.lines().len();
                    remote += order.lines().iter().filter(|line| line.supply_w_id != 2).count();
                }
                Input::Payment(payment) => {
                    payments += 1;
                    remote_payments += usize::from(payment.c_w_id != 2);
                }
                _ => {}
            }
        }
        assert!((0.47..0.53).contains(&(remote as f64 / lines as f64)), "{remote} of {lines}");
        assert!((0.45..0.55).contains(&(remote_payments as f64 / payments as f64)), "{remote_payments} of {payments}");
    }

    #[test]
    fn home_only_stays_at_home() {
        for input in inputs(Mix::HomeOnly, 13, 4600) {
            match input {
                Input::NewOrder(order) => assert!(order.lines().iter().all(|line| line.supply_w_id == 2)),
                Input::Payment(payment) => assert_eq!((payment.c_w_id, payment.c_d_id), (2, payment.d_id)),
                _ => {}
            }
        }
    }
}
