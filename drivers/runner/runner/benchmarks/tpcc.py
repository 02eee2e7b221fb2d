"""TPC-C (revision 5.11) as the paper runs it (§4.1): static tables that fit in memory, orders that accumulate.

*Data/memory ratio.* At ratio 1 the database of the scale (its `orders_per_district`) fits in memory on every system;
what it takes there is the memory for rows, the same at every ratio. At ratio r so many orders are loaded that the rows
take r times that memory. Anti-caching keeps the keys of an evicted row and its place on disk in memory (index entries,
Evicted Table), for TPC-C's short rows almost half of what the row takes itself. Those bytes come on top of the memory
for rows, in the budget of every system alike: all of them have the same memory, and MySQL uses it for pages.

Without that, ratios above about 2 could not be had: not even a memory without a single row would hold the keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from runner.axes import Cell, Grid
from runner.benchmarks.section import Data, Section
from runner.systems import WITHOUT_EVICTION
from runner.yamlfile import Document, Location, Strict

if TYPE_CHECKING:
    from runner.workload import ScaleValues

DISTRICTS = 10  # of a warehouse (clause 1.2.1)
LINES_PER_ORDER = 10  # on average (clause 2.4.1.3)
MOST_ORDERS_PER_DISTRICT = 10_000_000  # order numbers have as many digits in the terminals' screens, with a margin
BLOCKS_FOR_ORDERS_MINIMUM = 32  # with fewer blocks' worth of orders in memory one eviction empties a visible part


class TpccSize(Strict):
    """How big the database is at data/memory ratio 1."""

    warehouses: int = Field(ge=1, le=32767, description="an integer from 1 to 32767 (paper: 100)")
    items: int = Field(ge=100, le=100_000, description="an integer from 100 to 100000 (the specification's)")
    customers_per_district: int = Field(ge=30, le=3000, description="an integer from 30 to 3000 (the specification's)")
    orders_per_district: int = Field(
        ge=30, le=MOST_ORDERS_PER_DISTRICT, description="an integer from 30 to 10000000 (the specification: 3000)"
    )
    growth_bytes: int = Field(
        ge=0, multiple_of=1 << 20, description="whole MiB: what a trial may add in anticache-off, which cannot evict"
    )
    terminals: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="an integer from 1 to 4096, where the workload's number does not suit the number of warehouses",
    )


class StoredBytes(Strict):
    """What a row of each kind needs in a primary store with all that belongs to it: indexes, headers, free space."""

    item: int = Field(ge=1, description="an integer above 0: a row of ITEM, which every partition has")
    stock: int = Field(ge=1, description="an integer above 0: a row of STOCK")
    customer: int = Field(ge=1, description="an integer above 0: a customer with history and undelivered orders")
    order: int = Field(ge=1, description="an integer above 0: an order with its lines and index entries")
    evicted_order: int = Field(
        ge=1, description="an integer above 0: what stays in memory of an order when all its rows are evicted"
    )


class Tpcc(Section):
    """The database, the terminals and where their transactions go."""

    name: ClassVar[str] = "tpcc"
    size_key: ClassVar[str] = "tpcc"
    alone: ClassVar[bool] = True
    mysql_load_rows_per_s: ClassVar[int] = 80_000
    engine_load_rows_per_s: ClassVar[int] = 300_000

    access: Literal["home-warehouse", "remote"] = Field(
        description="home-warehouse (paper §4.1: every transaction stays at one warehouse) or remote (clause 2.4.1.5)"
    )
    wait_factor: float = Field(
        ge=0, le=1, description="a number from 0 to 1: keying and think times, as a share of the specification's"
    )
    stored_bytes: StoredBytes

    def terminals_at(self, values: ScaleValues) -> int:
        """Return the scale's number where it has one."""
        return values.tpcc.terminals or self.terminals

    def data(self, values: ScaleValues, ratio: float) -> Data:
        """More orders at a higher ratio; the other tables are the same at every ratio."""
        size, orders = values.tpcc, self.orders_per_district(values, ratio)
        static_bytes = self.static_bytes(values)
        stored_bytes = static_bytes + self._of_orders(values, orders)
        return Data(
            identity={
                "warehouses": size.warehouses,
                "items": size.items,
                "customers_per_district": size.customers_per_district,
                "orders_per_district": orders,
            },
            rows=self._rows(size, orders),
            stored_bytes=stored_bytes,
            loading_bytes=min(stored_bytes, 2 * self._row_memory(values)),  # in the order of keys: little is read again
            described=f"{size.warehouses} warehouses with {orders} orders per district",
            recorded={
                "stored_bytes": stored_bytes,
                "static_bytes": static_bytes,
                "row_memory_bytes": self._row_memory(values),
                "stored_bytes_per_order": self.stored_bytes.order,
                "evicted_bytes_per_order": self.stored_bytes.evicted_order,
            },
        )

    def _rows(self, size: TpccSize, orders_per_district: int) -> int:
        districts = size.warehouses * DISTRICTS
        of_district = 1 + 2 * size.customers_per_district + orders_per_district * (1 + LINES_PER_ORDER)
        return size.items * (1 + size.warehouses) + size.warehouses + districts * of_district

    def static_bytes(self, values: ScaleValues) -> int:
        """Return what everything but the orders takes; each partition has ITEM."""
        size, of = values.tpcc, self.stored_bytes
        of_warehouse = size.items * of.stock + DISTRICTS * size.customers_per_district * of.customer
        return size.warehouses * of_warehouse + values.partitions * size.items * of.item

    def _of_orders(self, values: ScaleValues, orders_per_district: float) -> int:
        return round(values.tpcc.warehouses * DISTRICTS * orders_per_district * self.stored_bytes.order)

    def _row_memory(self, values: ScaleValues) -> int:
        return self.static_bytes(values) + self._of_orders(values, values.tpcc.orders_per_district)

    def orders_per_district(self, values: ScaleValues, ratio: float) -> int:
        """Return how many orders make the rows take `ratio` times the memory for rows."""
        order_bytes = values.tpcc.warehouses * DISTRICTS * self.stored_bytes.order
        return round((ratio * self._row_memory(values) - self.static_bytes(values)) / order_bytes)

    def budget_bytes(self, values: ScaleValues, ratio: float, system: str) -> float:
        """Return the memory for rows and, for the orders beyond those at ratio 1, what of them never leaves it."""
        size = values.tpcc
        beyond = self.orders_per_district(values, ratio) - size.orders_per_district
        kept_bytes = max(0, beyond) * size.warehouses * DISTRICTS * self.stored_bytes.evicted_order
        room_bytes = size.growth_bytes if system == WITHOUT_EVICTION else 0
        return self._row_memory(values) + kept_bytes + room_bytes

    def spec(self, values: ScaleValues, cell: Cell, seed: int) -> dict[str, Any]:
        """Return loadgen's ``tpcc``; the population's seed is the experiment's, so that all trials load the same."""
        size = values.tpcc
        return {
            "warehouses": size.warehouses,
            "items": size.items,
            "customers_per_district": size.customers_per_district,
            "orders_per_district": self.orders_per_district(values, cell.data_memory_ratio),
            "population_seed": seed,
            "access": self.access,
            "wait_factor": self.wait_factor,
        }

    def write_share(self, cell: Cell) -> float:
        """Return the share of New-Order, Payment and Delivery (clause 5.2.3)."""
        del cell
        return 0.92

    def check(self, document: Document, schema: Path, grid: Grid) -> None:
        """Refuse an evicted order that takes more memory than one in memory."""
        del schema, grid
        of = self.stored_bytes
        if of.evicted_order >= of.order:
            raise document.error(
                ("tpcc", "stored_bytes", "evicted_order"),
                f"{of.evicted_order} is not less than the {of.order} bytes of an order in memory: evicting would free"
                " nothing",
            )

    def check_size(self, values: ScaleValues, ratio: float) -> tuple[Location, str] | None:
        """Refuse warehouses without a terminal, a memory without room for orders, and more orders than numbers."""
        if wrong := self._idle_warehouses(values):
            return wrong
        size, orders = values.tpcc, self.orders_per_district(values, ratio)
        blocks_bytes = BLOCKS_FOR_ORDERS_MINIMUM * values.eviction_block_bytes * values.partitions
        static_bytes = self.static_bytes(values)
        rows_bytes = round(min(ratio, 1.0) * self._row_memory(values))
        loaded = min(orders, size.orders_per_district) * size.warehouses * DISTRICTS
        needed_bytes = static_bytes + max(0, loaded) * self.stored_bytes.evicted_order + blocks_bytes
        if rows_bytes < needed_bytes:
            return (
                ("tpcc", "orders_per_district"),
                f"{size.orders_per_district} orders per district at data_memory_ratio {ratio:g} leave {rows_bytes}"
                f" bytes of memory for rows; the static tables take {static_bytes}, and {needed_bytes} are needed with"
                f" the keys of the orders and {BLOCKS_FOR_ORDERS_MINIMUM} blocks of them for each partition: raise"
                " orders_per_district or lower eviction_block_bytes",
            )
        if orders < size.customers_per_district:
            return (
                ("tpcc", "orders_per_district"),
                f"data_memory_ratio {ratio:g} would load {orders} orders per district for"
                f" {size.customers_per_district} customers, who each need one (clause 4.3.3.1): raise"
                " orders_per_district or the ratio",
            )
        if orders > MOST_ORDERS_PER_DISTRICT:
            return (
                ("tpcc", "orders_per_district"),
                f"data_memory_ratio {ratio:g} would load {orders} orders per district, more than the"
                f" {MOST_ORDERS_PER_DISTRICT} that can be numbered: lower the ratio or orders_per_district",
            )
        return None

    def _idle_warehouses(self, values: ScaleValues) -> tuple[Location, str] | None:
        """Refuse fewer terminals than warehouses: the data of those without one would only take up memory."""
        size, terminals = values.tpcc, self.terminals_at(values)
        if terminals >= size.warehouses:
            return None
        return (
            ("tpcc", "terminals" if size.terminals else "warehouses"),
            f"{terminals} terminals for {size.warehouses} warehouses leave {size.warehouses - terminals} of them"
            f" without one (terminal t is at home in warehouse t mod {size.warehouses} + 1), and their data are never"
            f" accessed: give the scale's tpcc.terminals as {size.warehouses} to {10 * size.warehouses} (ten per"
            " warehouse, clause 4.2.1), or lower warehouses",
        )
