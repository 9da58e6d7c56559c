import type { JSX } from "preact";
import type { Axis } from "../../api/types";
import { words } from "../../base/format";
import type { Level } from "../../model/level";
import { isRare } from "../../model/stages";

/** What color and shading say, for the stages there are. */
export function Legend({ levels, about }: { levels: Level[]; about: Axis | null }): JSX.Element {
  const stages = about?.stages ?? [];
  const step = levels[1] ?? levels[0];
  const there = new Set(step?.wire.operations.stage ?? []);
  const shown = stages.filter(
    (stage, code) => there.has(code) || (levels.length < 2 && !isRare(stage)),
  );
  const several = new Set(about?.tracks.map((one) => one.rank)).size > 1;
  const idle = about?.tracks.some((one) => one.kind === "idle") ?? false;
  return (
    <p class="legend" aria-label="Legend">
      <span class="legend-title">Stage</span>
      {shown.map((stage) => (
        <span key={stage} class="legend-entry">
          <span class={`swatch c-${stage}`} aria-hidden="true" />
          {words(stage)}
        </span>
      ))}
      <span class="legend-entry">
        <span class="swatch c-none" aria-hidden="true" />
        no stage
      </span>
      <span class="legend-entry" title="The stronger the color, the larger the share of the level">
        <span class="heat-ramp" aria-hidden="true" />
        larger share
      </span>
      {idle && (
        <span class="legend-entry">
          <span class="swatch idle-hatch" aria-hidden="true" />
          device idle
        </span>
      )}
      {several && (
        <span class="legend-entry" title="In the map of ranks; the rank to look at first is orange">
          <span class="swatch waits-hatch" aria-hidden="true" />
          waits for ranks
        </span>
      )}
    </p>
  );
}
