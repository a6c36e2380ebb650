"""What one deliberate mistake is, for the lists beside this file."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Break:
    """A mistake: in `source`, under src/outrider, `old` (found once) becomes `new`."""
    topic: str  # a key of its list's TOPICS
    mistake: str
    source: str
    old: str
    new: str
    program: str
    tests: str  # a gtest filter
