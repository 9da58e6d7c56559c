import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { SegmentRow } from "../../api/types";
import { bytes, plural } from "../../base/format";
import { memoryColor } from "../../model/memory";
import { most, sum } from "../../model/table/field";
import { drawSegment } from "../../render/memory";
import type { MemoryState } from "../../state/memory";
import type { Store } from "../../state/store";
import { theme } from "../../state/theme";
import { keptTable } from "../../state/tables";
import { numberColumn, type Column } from "../../widgets/table/column";
import { Table } from "../../widgets/table/table";
import { fileName } from "../file_name";
import { reader } from "./areas";

const MAP = { width: 130, height: 12 }; // so that all columns fit into half of 1024 px

/** The segments of the caching allocator at the chosen moment, and the holes in them. */
export function Segments(props: {
  store: Store;
  state: MemoryState;
  kinds: string[];
}): JSX.Element | null {
  const value = props.state.moment.value.value;
  if (!value?.segments_count) return null;
  return (
    <section class="memory-segments" aria-label="Segments at the moment">
      <h2 class="pane-heading">
        {bytes(value.reserved_bytes)} reserved in {plural(value.segments_count, "segment")}, largest
        hole {bytes(value.largest_hole)}
      </h2>
      <Table
        caption="Segments, those with most free memory first"
        kept={keptTable(props.store, "segments")}
        file={fileName(props.store, "segments")}
        columns={columnsOf(props.kinds)}
        rows={value.segments}
        left={value.segments_count - value.segments.length}
        noun={NOUN}
        keyOf={(row) => row.address}
        sorting={MOST_FREE}
      />
    </section>
  );
}

const NOUN: [string, string] = ["segment", "segments"];
const MOST_FREE = { column: "free", down: true };

function columnsOf(kinds: string[]): Column<SegmentRow>[] {
  return [
    {
      id: "map",
      title: "contents",
      hint: "from its first byte to its last, by kind; what is free is empty",
      value: (row) => row.address,
      cell: (row) => <SegmentMap row={row} kinds={kinds} />,
    },
    size("bytes", "size", "bytes of the segment", (row) => row.bytes, sum),
    size("free", "free", "what no allocation holds", (row) => row.free_bytes, sum),
    size("hole", "largest hole", "the largest free piece", (row) => row.largest_hole, most),
  ];
}

function size(
  id: string,
  title: string,
  hint: string,
  value: (row: SegmentRow) => number,
  total: typeof sum,
): Column<SegmentRow> {
  return numberColumn(id, title, value, bytes, { hint, unit: "bytes", total: total(value) });
}

function SegmentMap({ row, kinds }: { row: SegmentRow; kinds: string[] }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const shade = theme.value;
  useLayoutEffect(() => {
    const color = reader();
    const colors = kinds.map((kind) => color(memoryColor("kind", kind, 0)));
    drawSegment(canvas.current!, row.parts, colors, color("surface"), MAP);
  }, [row, kinds, shade]);
  const label = `Segment ${row.address}: ${bytes(row.free_bytes)} of ${bytes(row.bytes)} free`;
  return (
    <canvas
      ref={canvas}
      role="img"
      class="segment-map"
      aria-label={label}
      title={label}
      style={{ width: `${MAP.width}px`, height: `${MAP.height}px` }}
    />
  );
}
