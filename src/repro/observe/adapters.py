"""The network adapters of this node, as sysfs shows them: HCA ports and IP interfaces."""

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
        Whether its link is up.
    rate_gbps
        Nominal rate of the link.
    """

    hca: str
    number: int
    link_layer: str
    active: bool
    rate_gbps: float

    @property
    def name(self) -> str:
        """As NCCL names it."""
        return f"{self.hca}:{self.number}"

    def __str__(self) -> str:
        state = "active" if self.active else "down"
        return f"{self.name} ({self.link_layer}, {state}, {self.rate_gbps:g} Gbit/s)"


@dataclass(frozen=True)
class Interface:
    """An IP interface.

    Attributes
    ----------
    up
        Whether it can carry packets.
    physical
        Whether there is a device behind it: bridges, containers' and other virtual ones have none.
    speed_gbps
        Nominal rate; None where the driver does not say.
    """

    name: str
    kind: Kind
    up: bool
    physical: bool
    speed_gbps: float | None

    def __str__(self) -> str:
        virtual = "" if self.physical else ", virtual"
        rate = f", {self.speed_gbps:g} Gbit/s" if self.speed_gbps else ""
        return f"{self.name} ({self.kind}, {'up' if self.up else 'down'}{virtual}{rate})"


def read_ports(sys: Path = SYS) -> list[Port]:
    """All ports of all HCAs, by name and number."""
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
    """All IP interfaces but the loopback, by name."""
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
    # HPE names Slingshot's interfaces so; to IP they are Ethernet.
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
