"""Which addresses a proxy may connect to: public ones only, whatever they are wrapped in. Pure."""

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

# What no sandbox may reach although `is_global` may not know it. IANA special-purpose registries (RFC 6890)
# and the addresses at which clouds tell a machine its own secrets.
_REFUSED_V4: Final = {
    "loopback": ("127.0.0.0/8",),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    "link-local": ("169.254.0.0/16",),
    "carrier-grade NAT": ("100.64.0.0/10",),
    "metadata": ("168.63.129.16/32",),  # Azure's; a public address by its number
    "multicast": ("224.0.0.0/4",),
    "reserved": ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
                 "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
}  # fmt: skip
_REFUSED_V6: Final = {
    "loopback": ("::1/128",),
    "private": ("fc00::/7", "fec0::/10"),
    "link-local": ("fe80::/10",),
    "multicast": ("ff00::/8",),
    "reserved": ("2001:db8::/32", "2001::/23", "3fff::/20", "5f00::/16", "100::/64"),
}
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # RFC 4291, section 2.4: all that is assigned today
_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052
_V4: Final = [(kind, IPv4Network(net)) for kind, nets in _REFUSED_V4.items() for net in nets]
_V6: Final = [(kind, IPv6Network(net)) for kind, nets in _REFUSED_V6.items() for net in nets]


def refusal(address: str) -> str | None:
    """Return why an address is refused (one or two words), None if it is a public one.

    >>> refusal("::ffff:169.254.169.254")
    'wrapped link-local'
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "malformed"  # a scope (fe80::1%eth0) included: only link-local ones have it
    if isinstance(parsed, IPv4Address):
        return _refusal_v4(parsed)
    inner = _wrapped(parsed)
    if inner is not None:  # even around a public one: nobody needs it, and what unwraps it is not known here
        return f"wrapped {_refusal_v4(inner) or 'IPv4'}"
    for kind, network in _V6:
        if parsed in network:
            return kind
    return None if parsed in _GLOBAL_UNICAST and parsed.is_global else "reserved"


def _refusal_v4(address: IPv4Address) -> str | None:
    for kind, network in _V4:
        if address in network:
            return kind
    return None if address.is_global else "reserved"


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 one stands for: mapped, compatible, NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        return address.sixtofour
    return address.teredo[1] if address.teredo is not None else None
