"""All that is known of one entry file: models over its batch size, breakdown, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.predict.breakdown import Breakdown
from stepscope.predict.capacity import Capacity
from stepscope.predict.edit import Edit, edit_site
from stepscope.predict.entry import Entry
from stepscope.predict.estimate import Estimate
from stepscope.predict.profile import Profile

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """All that is known of one entry file.

    Attributes:
        entry: the file, its command line and its batch size.
        profile: models over the batch size.
        breakdown: what a step at the entry's own batch size is made of; None if not asked for.
        estimate: memory as fake tensors tell it; None if not asked for or not possible.
        capture: the steps that were recorded; the file is gone once the session is closed.
    """

    entry: Entry
    profile: Profile
    breakdown: Breakdown | None = None
    estimate: Estimate | None = None
    capture: Path | None = None

    def to_json(self, at: Sequence[int] = ()) -> Json:
        """As `stepscope batch --json` has it."""
        entry = self.entry
        result: Json = {
            "entry": entry.path,
            "arguments": list(entry.arguments),
            "kind": entry.kind,
            "batch": entry.batch,
            "site": entry.site.to_json(),
            **self.profile.to_json(at),
        }
        if self.breakdown is not None:
            result["breakdown"] = self.breakdown.to_json()
        if self.estimate is not None:
            result["estimate"] = self.estimate.to_json()
        return result

    def fits(self, capacity: Capacity) -> Json:
        """The largest batch size whose peak is within a capacity.

        Returns:
            `{"name", "capacity_bytes", "batch", "bytes", "throughput"}`; batch is None where not
            even one sample fits.
        """
        batch = self.profile.batch_for_bytes(capacity.bytes)
        found = self.profile.predict(batch) if batch else {}
        return {
            "name": capacity.name,
            "capacity_bytes": capacity.bytes,
            "batch": batch,
            "bytes": found.get("bytes"),
            "throughput": found.get("throughput"),
        }

    def edit(self, batch: int) -> Edit:
        """The change of source that sets a batch size; see `edit_site`."""
        site = self.entry.site
        return edit_site(self.entry.sources[site.path].text, site, batch)
