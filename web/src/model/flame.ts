import type { Flame, NodeFinding } from "../api/types";

/** Boxes thinner than this are drawn, and met, together with their neighbors, px. */
export const THIN_PX = 1;
export const ROW_PX = 19;
const NEARLY_ALL = 0.97;

/** Where a box was written, or the nearest one around it that says. */
export interface SourcePlace {
  file: string;
  line: number;
}

/**
 * A flame graph laid out: each box from `left` to `right` as shares of the whole, at a depth.
 *
 * Boxes come in preorder with the largest sibling first, so that one pass lays them out. Where two
 * profiles are compared `width` holds what either has.
 */
export class FlameLayout {
  readonly size: number;
  readonly left: Float64Array;
  readonly right: Float64Array;
  readonly depth: Int32Array;
  /** The boxes of each depth, from left to right. */
  readonly rows: Int32Array[];
  /** The row after the last one below each box. */
  readonly end: Int32Array;

  constructor(readonly wire: Flame) {
    const { parent, value } = wire.boxes;
    const size = (this.size = value.length);
    const width = wire.boxes.width ?? value;
    this.left = new Float64Array(size);
    this.right = new Float64Array(size);
    this.depth = new Int32Array(size);
    this.end = new Int32Array(size);
    const next = new Float64Array(size);
    const counts: number[] = [];
    const whole = width[0] || 1;
    for (let box = 0; box < size; box++) {
      const above = parent[box]!;
      const share = above < 0 ? 1 : width[box]! / whole;
      this.left[box] = above < 0 ? 0 : next[above]!;
      this.right[box] = this.left[box]! + share;
      this.depth[box] = above < 0 ? 0 : this.depth[above]! + 1;
      next[box] = this.left[box]!;
      if (above >= 0) next[above] = this.right[box]!;
      counts[this.depth[box]!] = (counts[this.depth[box]!] ?? 0) + 1;
      this.end[box] = box + 1;
    }
    for (let box = size - 1; box > 0; box--) {
      const above = parent[box]!;
      this.end[above] = Math.max(this.end[above]!, this.end[box]!);
    }
    this.rows = counts.map((count) => new Int32Array(count));
    const filled = counts.map(() => 0);
    for (let box = 0; box < size; box++) {
      const depth = this.depth[box]!;
      this.rows[depth]![filled[depth]!++] = box;
    }
  }

  /** The box of a node; the first one where it has none. */
  boxOf(node: number): number {
    return Math.max(this.wire.boxes.node.indexOf(node), 0);
  }

  /** Where an arrow key leads from a box: to its caller, its largest call, or beside it. */
  neighbor(box: number, key: string): number {
    const { parent } = this.wire.boxes;
    const row = this.rows[this.depth[box]!]!;
    const beside = (by: number): number => row[row.indexOf(box) + by] ?? box;
    switch (key) {
      case "ArrowUp":
        return Math.max(parent[box]!, 0);
      case "ArrowDown":
        return this.end[box]! > box + 1 ? box + 1 : box;
      case "ArrowLeft":
        return beside(-1);
      case "ArrowRight":
        return beside(1);
      default:
        return box;
    }
  }

  /** The first depth at which no box holds nearly everything: above it there is one way down. */
  forks(): number {
    const alone = (row: Int32Array): boolean =>
      row.some((box) => this.right[box]! - this.left[box]! > NEARLY_ALL);
    const found = this.rows.findIndex((row) => !alone(row));
    return found < 0 ? 0 : found;
  }

  name(box: number): string {
    return this.wire.strings[this.wire.boxes.name[box]!] ?? "";
  }

  kind(box: number): string {
    return this.wire.strings[this.wire.boxes.kind[box]!] ?? "";
  }

  /** The boxes from the first one down to `box`. */
  path(box: number): number[] {
    const found = [box];
    while (this.wire.boxes.parent[found[0]!]! >= 0)
      found.unshift(this.wire.boxes.parent[found[0]!]!);
    return found;
  }

  /** The line of a box, or of the nearest one above it that has one. */
  source(box: number): SourcePlace | null {
    const { file, line } = this.wire.boxes;
    for (const one of this.path(box).reverse()) {
      if (line[one]! >= 0 && this.wire.strings[file[one]!])
        return { file: this.wire.strings[file[one]!]!, line: line[one]! };
    }
    return null;
  }

  /** Whether something below a box is too small to be told. */
  hides(box: number): boolean {
    for (let one = box; one < this.end[box]!; one++)
      if (this.wire.boxes.hidden[one]! > 0) return true;
    return false;
  }

  /** The box at a share of the width, at a depth; -1 for none. */
  at(depth: number, share: number): number {
    const row = this.rows[depth];
    if (!row) return -1;
    const index = firstEndingAfter(this, row, share);
    const box = row[index];
    return box !== undefined && this.left[box]! <= share ? box : -1;
  }

  /** The boxes whose name holds a text, in any case; null for an empty text. */
  find(text: string): Found | null {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const names = this.wire.strings.map((one) => one.toLowerCase().includes(wanted));
    const is = new Uint8Array(this.size);
    let [count, total, covered] = [0, 0, 0];
    for (let box = 0; box < this.size; box++) {
      if (!names[this.wire.boxes.name[box]!] || this.wire.boxes.node[box]! < 0) continue;
      is[box] = 1;
      count += 1;
      // What is inside a box that was found is counted with it.
      if (box >= covered) {
        total += this.wire.boxes.value[box]!;
        covered = this.end[box]!;
      }
    }
    return { is, count, total };
  }
}

export interface Found {
  is: Uint8Array;
  count: number;
  /** The value of all boxes found, each moment once. */
  total: number;
}

/** The first box of a row that ends after a share of the width. */
export function firstEndingAfter(layout: FlameLayout, row: Int32Array, share: number): number {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (layout.right[row[middle]!]! > share) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The worst finding on each box; -1 for none. */
export function findingOfBoxes(layout: FlameLayout, findings: readonly NodeFinding[]): Int32Array {
  const found = new Int32Array(layout.size).fill(-1);
  const of = new Map<number, number>();
  findings.forEach((one, number) =>
    one.nodes.forEach((node) => {
      if (!of.has(node)) of.set(node, number);
    }),
  );
  layout.wire.boxes.node.forEach((node, box) => {
    found[box] = of.get(node) ?? -1;
  });
  return found;
}

/** How much a box changed, from -1 (gone) over 0 to 1 (new). */
export function changeOf(layout: FlameLayout, box: number): number {
  const { value, before } = layout.wire.boxes;
  const [now, was] = [value[box]!, before?.[box] ?? value[box]!];
  return now + was > 0 ? (now - was) / Math.max(now, was) : 0;
}
