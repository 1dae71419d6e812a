"""Conversion of recording files of older schema versions, read or rewritten as the present one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gswarm_tui.store.sql.schema import GPU_SAMPLES, SCHEMA_VERSION, TABLES, comments

UNSIGNED = {"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "INTEGER", "UBIGINT": "BIGINT"}
"""Unsigned types of schema 2 and those that replace them; bits became BIGINT."""


ENERGY, ENERGY_TIME = "energy_used_mj", "energy_used_ms"
"""Columns of GPU samples that schema 2 lacks."""


def lacks_energy(existing: Mapping[str, str]) -> bool:
    """Return whether ``with_energy`` is for GPU samples with these columns."""
    return ENERGY not in existing and {"interval_ms", "power_w", "energy_mj"} <= existing.keys()


def is_older(found: str, now: str) -> bool:
    """Return whether a column's type is that of schema 2 for the present one."""
    return UNSIGNED.get(found) == now or (found, now) == ("UINTEGER", "BIGINT")


def with_energy(database: str) -> str:
    """Return SQL for the GPU samples of schema 2 with the columns of energy, and their ``place``.

    It follows ``fleet.energy``, except that late samples are in their place.
    """
    by_gpu = "PARTITION BY n.recording_id, n.node, g.gpu_index, g.uuid ORDER BY s.ts"
    return f"""
SELECT *,
       CASE WHEN counter_mj IS NULL AND before_mj IS NULL THEN TRY_CAST(power_w * interval_ms AS BIGINT)
            WHEN counter_mj - before_mj IS NOT NULL
              THEN TRY_CAST(greatest(counter_mj - before_mj, 0) AS BIGINT)
            END AS energy_used_mj,
       CASE WHEN counter_mj IS NULL AND before_mj IS NULL THEN interval_ms::BIGINT
            WHEN counter_mj - before_mj IS NOT NULL THEN epoch_ms(ts) - epoch_ms(before_ts)
            END AS energy_used_ms
FROM (
  SELECT s.*, s.rowid AS place, TRY_CAST(s.energy_mj AS HUGEINT) AS counter_mj,
         lag(TRY_CAST(s.energy_mj AS HUGEINT) IGNORE NULLS) OVER ({by_gpu}) AS before_mj,
         lag(CASE WHEN s.energy_mj IS NOT NULL THEN s.ts END IGNORE NULLS) OVER ({by_gpu}) AS before_ts
  FROM {database}gpu_samples s
  JOIN {database}gpus g USING (gpu_id)
  JOIN {database}nodes n USING (node_id)
)
"""  # noqa: S608 (own names)


def upgrade_statements(existing: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Return the statements that make an older file one of this version.

    ``existing`` maps tables to columns and their types.
    """
    for table in TABLES:
        there = existing[table.name]
        if not there:
            yield table.create
            yield from comments(table)
            continue
        if all(there.get(column.name) == column.type for column in table.columns):
            continue
        if table is GPU_SAMPLES and lacks_energy(there):
            kept = [column for column in table.columns if column.name in {*there, ENERGY, ENERGY_TIME}]
            names = ", ".join(column.name for column in kept)
            values = ", ".join(f"TRY_CAST({column.name} AS {column.type})" for column in kept)
            yield table.create.replace(table.name, "migrated", 1)
            yield (
                f"INSERT INTO migrated ({names}) SELECT {values} FROM ({with_energy('')}) ORDER BY place"  # noqa: S608
            )
            yield f"DROP TABLE {table.name}"
            yield f"ALTER TABLE migrated RENAME TO {table.name}"
        else:
            for column in table.columns:
                if column.name not in there:
                    yield f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type}"
                elif there[column.name] != column.type:
                    yield f"ALTER TABLE {table.name} ALTER COLUMN {column.name} TYPE {column.type}"
        yield from comments(table)
    version = f"schema_version = {SCHEMA_VERSION} WHERE schema_version < {SCHEMA_VERSION}"
    yield f"UPDATE recordings SET {version}"  # noqa: S608 (numbers)
