"""Which addresses belong to the public internet, and which address or network a text spells out."""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_FORBIDDEN = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure's host, a public address
            "192.0.0.0/24",  # protocols, and the metadata of one cloud
            "192.88.99.0/24",  # relays into IPv6
            "::/96",  # IPv4 in the old way
            "64:ff9b:1::/48",  # NAT64 of one's own network
            "fec0::/10",  # site-local
            "5f00::/16",  # segment routing inside a network
        ),
    )
)


def is_public(address: Address) -> bool:
    """Whether an address, and every IPv4 address inside it, belongs to the public internet."""
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return address in _NAT64 and is_public(_last_ipv4(address))  # some versions of Python call it reserved
    if any(address in network for network in _FORBIDDEN):
        return False
    return all(map(is_public, _embedded(address)))


def _embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 one leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    return [one for one in found if one] + ([_last_ipv4(address)] if address in _NAT64 else [])


def _last_ipv4(address: Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def literal_of(host: str) -> Address | None:
    """The address that a host spells out, in any form that a system call would take ("0x7f.1", "2130706433")."""
    try:
        return address_of(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def address_of(text: str) -> Address:
    """An address; IPv4 in IPv6's clothes is IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def network_of(entry: str) -> Network | None:
    """The network, or the one address, that an entry of a list spells out; None for a name."""
    try:
        return ipaddress.ip_network(entry.strip(), strict=False)
    except ValueError:
        return None
