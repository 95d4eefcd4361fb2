"""Values of rows, in the order of the rows: by their dims, and by labels if both have some."""

from __future__ import annotations

from xarray import DataArray

from synkhronos._errors import InputError


def in_order(what: str, values: DataArray, rows: DataArray) -> DataArray:
    """Values in the order of the rows; those dims that the rows have are the first ones.

    Raises
    ------
    InputError
        A dim has another length or other labels; `what` is how the message names the values.
    """
    dims = [dim for dim in rows.dims if dim in values.dims]
    for dim in dims:
        if values.sizes[dim] != rows.sizes[dim]:
            raise InputError(f"{what} has {dict(values.sizes)}, rows {dict(rows.sizes)}")
        own, wanted = values.indexes.get(dim), rows.indexes.get(dim)
        if own is None or wanted is None or own.equals(wanted):
            continue
        unique = own.is_unique and wanted.is_unique
        if not unique or (places := own.get_indexer(wanted)).min() < 0:
            raise InputError(
                f"{what} has other labels of {dim!r} than {rows.name}: give a value for each of "
                "its labels, or an array without labels"
            )
        values = values.isel({dim: places})
    return values.transpose(*dims, ...)
