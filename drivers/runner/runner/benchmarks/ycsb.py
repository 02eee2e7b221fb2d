"""YCSB (paper §4.1): one table, reads and updates of single records by a Zipf distribution."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from runner.axes import Cell, Grid, TupleBytes
from runner.benchmarks.section import Data, Section
from runner.yamlfile import Document, Location, Strict, nearest, shown

if TYPE_CHECKING:
    from runner.workload import ScaleValues

Share = Annotated[float, Field(ge=0, le=1)]


KEY_BYTES = 8  # a BIGINT


class TupleShape(Strict):
    """What the records of a size are made of."""

    schema_file: str = Field(alias="schema", description="a path of SQL DDL relative to workloads/")
    fields: int = Field(ge=1, le=1000, description="an integer from 1 to 1000 (columns besides the key)")
    field_bytes: int = Field(ge=16, le=255, description="an integer from 16 to 255 (a CHAR column's bytes)")
    stored_bytes_per_record: int = Field(
        ge=1, description="an integer above 0 (what one record needs in a primary store, overheads included)"
    )


class Ycsb(Section):
    """The YCSB table and how it is accessed."""

    name: ClassVar[str] = "ycsb"
    size_key: ClassVar[str] = "records"
    mysql_load_rows_per_s: ClassVar[int] = 25_000
    engine_load_rows_per_s: ClassVar[int] = 150_000

    mixes: dict[str, Share] = Field(
        min_length=1, description="names with the share of reads, a number from 0 to 1 (1 = read-only)"
    )
    fields: int = Field(ge=1, le=1000, description="an integer from 1 to 1000 (columns besides the key)")
    field_bytes: int = Field(ge=16, le=255, description="an integer from 16 to 255 (a CHAR column's bytes)")
    key_order: Literal["clustered", "scattered"] = Field(description="clustered or scattered")
    update_fields: int = Field(ge=1, le=1, description="1 (an update writes one column, as in the paper)")
    verify_share: Share = Field(description="a number from 0 to 1 (share of reads that are verified)")
    stored_bytes_per_record: int = Field(
        ge=1, description="an integer above 0 (what one record needs in a primary store, overheads included)"
    )
    tuples: dict[TupleBytes, TupleShape] = Field(
        default={}, description="shapes of records by the bytes of a tuple, key included, for the axis tuple_bytes"
    )
    _records_per_record: float = PrivateAttr(default=1.0)
    """So many records there are for each of the scale's: those of another size take as many bytes as its own."""

    @property
    def default_key_order(self) -> str:
        """Return the section's own."""
        return self.key_order

    def at(self, cell: Cell) -> Ycsb:
        """Return the section with the cell's order of keys, terminals, size of tuples (as many bytes) and records."""
        own: dict[str, Any] = {"key_order": cell.key_order or self.key_order}
        if cell.terminals_factor is not None:
            own["terminals"] = max(1, round(self.terminals * cell.terminals_factor))
        section = self.model_copy(update=own)
        if cell.tuple_bytes is not None:
            shape = self.tuples[cell.tuple_bytes]
            section = section.model_copy(update={name: getattr(shape, name) for name in TupleShape.model_fields})
            section._records_per_record = self.stored_bytes_per_record / shape.stored_bytes_per_record
        if cell.records_factor is not None:
            section._records_per_record *= cell.records_factor
        return section

    def _records(self, values: ScaleValues) -> int:
        return round(values.records * self._records_per_record)

    def data(self, values: ScaleValues, ratio: float) -> Data:
        """The same records at every ratio."""
        del ratio
        records = self._records(values)
        stored_bytes = records * self.stored_bytes_per_record
        return Data(
            identity={"records": records, "fields": self.fields, "field_bytes": self.field_bytes},
            rows=records,
            stored_bytes=stored_bytes,
            loading_bytes=stored_bytes,
            described=f"{records} records",
        )

    def budget_bytes(self, values: ScaleValues, ratio: float, system: str) -> float:
        """Return the loaded bytes divided by the ratio."""
        del system
        return self._records(values) * self.stored_bytes_per_record / ratio

    def spec(self, values: ScaleValues, cell: Cell, seed: int) -> dict[str, Any]:
        """Return loadgen's ``ycsb``."""
        del seed
        return {
            "records": self._records(values),
            "fields": self.fields,
            "field_bytes": self.field_bytes,
            "mix": cell.mix,
            "read_share": self.mixes[str(cell.mix)],
            "skew": cell.skew,
            "key_order": self.key_order,
            "update_fields": self.update_fields,
            "verify_share": self.verify_share,
        }

    def write_share(self, cell: Cell) -> float:
        """Return the share of updates."""
        return 1 - self.mixes[str(cell.mix)]

    def check(self, document: Document, schema: Path, grid: Grid) -> None:
        """Refuse unknown mixes and sizes of tuples, and columns that are not the schema's."""
        for index, name in enumerate(grid.values("mix")):
            if name not in self.mixes:
                names = ", ".join(self.mixes)
                raise document.error(
                    ("grid", "mix", index), f"unknown mix {name!r}{nearest(name, self.mixes)}; allowed: {names}"
                )
        for index, size_bytes in enumerate(grid.values("tuple_bytes")):
            if size_bytes not in self.tuples:
                listed = ", ".join(map(str, self.tuples)) or "none, the section has no `tuples`"
                raise document.error(
                    ("grid", "tuple_bytes", index), f"{size_bytes} is not in ycsb.tuples; allowed: {listed}"
                )
        _check_columns(document, ("ycsb",), self, schema)
        for size_bytes, shape in self.tuples.items():
            location: Location = ("ycsb", "tuples", size_bytes)
            own = schema.parent / Path(shape.schema_file).name
            if not own.is_file():
                raise document.error(
                    (*location, "schema"), f"{shape.schema_file!r}: no such file beside {shown(schema)}"
                )
            _check_columns(document, location, shape, own)
            made = KEY_BYTES + shape.fields * shape.field_bytes
            if made != size_bytes:
                raise document.error(
                    location, f"{shape.fields} fields of {shape.field_bytes} bytes and a key make {made} bytes"
                )


def _check_columns(document: Document, location: Location, shape: Ycsb | TupleShape, schema: Path) -> None:
    """Refuse fields that are not the schema's: the loaders fill the columns it declares; and too few bytes stored."""
    payload = shape.fields * shape.field_bytes
    if shape.stored_bytes_per_record < payload:
        raise document.error(
            (*location, "stored_bytes_per_record"),
            f"{shape.stored_bytes_per_record} is less than the {payload} bytes of a record's fields alone",
        )
    statements = re.sub(r"--.*", "", schema.read_text(encoding="utf-8"))
    columns = [int(size) for size in re.findall(r"\bCHAR\s*\(\s*(\d+)\s*\)", statements, re.IGNORECASE)]
    if shape.fields != len(columns):
        raise document.error(
            (*location, "fields"),
            f"{shape.fields} is not allowed: {shown(schema)} declares {len(columns)} CHAR columns;"
            f" allowed: {len(columns)}",
        )
    sizes = sorted(set(columns))
    if sizes != [shape.field_bytes]:
        listed = ", ".join(map(str, sizes))
        raise document.error(
            (*location, "field_bytes"),
            f"{shape.field_bytes} is not allowed: the CHAR columns in {shown(schema)} have {listed} bytes; allowed: "
            + (listed if len(sizes) == 1 else "one size for all columns there"),
        )
