"""YCSB (paper §4.1): one table, reads and updates of single records by a Zipf distribution."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from runner.axes import Cell
from runner.benchmarks.section import Data, Section
from runner.yamlfile import Document, nearest, shown

if TYPE_CHECKING:
    from runner.workload import ScaleValues

Share = Annotated[float, Field(ge=0, le=1)]


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

    def data(self, values: ScaleValues, ratio: float) -> Data:
        """The same records at every ratio."""
        del ratio
        stored_bytes = values.records * self.stored_bytes_per_record
        return Data(
            identity={"records": values.records, "fields": self.fields, "field_bytes": self.field_bytes},
            rows=values.records,
            stored_bytes=stored_bytes,
            loading_bytes=stored_bytes,
            described=f"{values.records} records",
        )

    def budget_bytes(self, values: ScaleValues, ratio: float, system: str) -> float:
        """Return the loaded bytes divided by the ratio."""
        del system
        return values.records * self.stored_bytes_per_record / ratio

    def spec(self, values: ScaleValues, cell: Cell, seed: int) -> dict[str, Any]:
        """Return loadgen's ``ycsb``."""
        del seed
        return {
            "records": values.records,
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

    def check(self, document: Document, schema: Path, mixes: list[str]) -> None:
        """Refuse unknown mixes, and columns that are not the schema's."""
        for index, name in enumerate(mixes):
            if name not in self.mixes:
                names = ", ".join(self.mixes)
                raise document.error(
                    ("grid", "mix", index), f"unknown mix {name!r}{nearest(name, self.mixes)}; allowed: {names}"
                )
        payload = self.fields * self.field_bytes
        if self.stored_bytes_per_record < payload:
            raise document.error(
                ("ycsb", "stored_bytes_per_record"),
                f"{self.stored_bytes_per_record} is less than the {payload} bytes of a record's fields alone",
            )
        self._check_columns(document, schema)

    def _check_columns(self, document: Document, schema: Path) -> None:
        """Refuse `fields` and `field_bytes` that are not the schema's: the loaders fill the columns it declares."""
        statements = re.sub(r"--.*", "", schema.read_text(encoding="utf-8"))
        columns = [int(size) for size in re.findall(r"\bCHAR\s*\(\s*(\d+)\s*\)", statements, re.IGNORECASE)]
        if self.fields != len(columns):
            raise document.error(
                ("ycsb", "fields"),
                f"{self.fields} is not allowed: {shown(schema)} declares {len(columns)} CHAR columns;"
                f" allowed: {len(columns)}",
            )
        sizes = sorted(set(columns))
        if sizes != [self.field_bytes]:
            listed = ", ".join(map(str, sizes))
            raise document.error(
                ("ycsb", "field_bytes"),
                f"{self.field_bytes} is not allowed: the CHAR columns in {shown(schema)} have {listed} bytes; allowed: "
                + (listed if len(sizes) == 1 else "one size for all columns there"),
            )
