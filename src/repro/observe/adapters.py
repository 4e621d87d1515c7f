"""Network adapters of this node, read from sysfs: HCA ports and IP interfaces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SYS = Path("/sys")

Kind = Literal["ethernet", "infiniband", "slingshot", "other"]
# ARPHRD_ETHER and ARPHRD_INFINIBAND of linux/if_arp.h.
_KINDS: dict[int, Kind] = {1: "ethernet", 32: "infiniband"}


@dataclass(frozen=True)
class Port:
    """A port of a host channel adapter.

    Attributes
    ----------
    link_layer
        `InfiniBand`, or `Ethernet` for RoCE.
    active
        Whether the link is up.
    rate_gbps
        Nominal link rate, in Gbit/s.
    """

    hca: str
    number: int
    link_layer: str
    active: bool
    rate_gbps: float

    @property
    def name(self) -> str:
        """NCCL's name of the port."""
        return f"{self.hca}:{self.number}"

    def __str__(self) -> str:
        """Return name, link layer, state and rate on one line."""
        state = "active" if self.active else "down"
        return f"{self.name} ({self.link_layer}, {state}, {self.rate_gbps:g} Gbit/s)"


@dataclass(frozen=True)
class Interface:
    """An IP interface.

    Attributes
    ----------
    up
        Whether the interface can carry packets.
    physical
        Whether it has a hardware device; bridges and container interfaces have none.
    speed_gbps
        Nominal rate, in Gbit/s; None if the driver does not report it.
    """

    name: str
    kind: Kind
    up: bool
    physical: bool
    speed_gbps: float | None

    def __str__(self) -> str:
        """Return name, kind, state and rate on one line."""
        virtual = "" if self.physical else ", virtual"
        rate = f", {self.speed_gbps:g} Gbit/s" if self.speed_gbps else ""
        return f"{self.name} ({self.kind}, {'up' if self.up else 'down'}{virtual}{rate})"


def read_ports(sys: Path = SYS) -> list[Port]:
    """Read the ports of all HCAs, sorted by name and number."""
    return [
        Port(
            hca=folder.parent.parent.name,
            number=int(folder.name),
            link_layer=_text(folder / "link_layer"),
            active=_text(folder / "state").endswith("ACTIVE"),
            rate_gbps=float(_text(folder / "rate").split()[0]),
        )
        for folder in sorted((sys / "class/infiniband").glob("*/ports/*"))
    ]


def read_interfaces(sys: Path = SYS) -> list[Interface]:
    """Read all IP interfaces except the loopback, sorted by name."""
    return [
        Interface(
            name=folder.name,
            kind=_kind(folder),
            up=_text(folder / "operstate") in ("up", "unknown"),
            physical=(folder / "device").exists(),
            speed_gbps=_speed_gbps(folder),
        )
        for folder in sorted((sys / "class/net").glob("*"))
        if folder.name != "lo" and folder.is_dir()
    ]


def _kind(folder: Path) -> Kind:
    # Linux reports Slingshot interfaces as Ethernet; HPE names them hsn*.
    if folder.name.startswith("hsn"):
        return "slingshot"
    return _KINDS.get(int(_text(folder / "type")), "other")


def _speed_gbps(folder: Path) -> float | None:
    try:
        megabits = int(_text(folder / "speed"))
    except (OSError, ValueError):
        return None
    return megabits / 1e3 if megabits > 0 else None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
