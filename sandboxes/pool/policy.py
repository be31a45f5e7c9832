"""What a pool may hold, and when what it holds gives way. Times are seconds; 0 switches a thing off."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """See the module."""

    capacity: int = 64  # living sandboxes and slots
    max_asleep: int = (
        1000  # living ones and sleeping ones with files on this node; more go to the shared store
    )
    wait_s: float = 0.0  # for room, before a creation is refused
    warm_slots: int = 0  # kept ready for each image that was asked for lately
    slot_max_age_s: float = 600.0  # then it is replaced
    recipe_max_age_s: float = 1800.0  # nobody asked for the image for so long: no slots of it
    nap_after_s: float = 0.0
    doze_after_s: float = 0.0
    sleep_after_s: float = 0.0  # of whatever has no other clock; a lease has its own
    memory_high: float = 0.0  # used part of the memory, above which the oldest idle ones give way
    evict_idle_s: float = 1.0  # who was used so lately is about to be used again: it is no candidate
    retry_after_s: float = 5.0  # what a refusal advises when nobody is about to become idle
