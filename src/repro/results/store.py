"""Results on disk: netCDF files that exist whole or not at all, with their provenance."""

from pathlib import Path

import xarray as xr

from repro.atomic import replacing
from repro.errors import ReproError


def write_dataset(dataset: xr.Dataset, path: Path) -> None:
    """Write a dataset as compressed netCDF4, replacing the file at once when it is complete.

    Raises
    ------
    ReproError
        The folder cannot be written or the disk is full.
    """
    encoding = {
        name: {"zlib": True, "complevel": 4}
        for name, variable in dataset.data_vars.items()
        if variable.dtype.kind == "f"
    }
    try:
        with replacing(path) as temporary:
            dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
    except (OSError, RuntimeError) as error:
        raise ReproError(
            f"{path}: cannot be written ({error}); free space or choose another folder"
        ) from None


def read_dataset(path: Path) -> xr.Dataset:
    """Read a whole dataset.

    Raises
    ------
    ReproError
        The file is missing or no netCDF file.
    """
    try:
        return xr.load_dataset(path, engine="netcdf4")
    except FileNotFoundError:
        raise ReproError(f"{path}: no such result; `dvc repro` produces it") from None
    except OSError as error:
        raise ReproError(f"{path}: not a readable netCDF file ({error})") from None
