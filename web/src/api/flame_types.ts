/** The answers `contexts` and `context_findings` of `docs/web_api.md`. */

export interface Flame {
  by: string;
  meaning: string;
  unit: string;
  up: boolean;
  /** The node of the first box, and the path that leads to it. */
  start: number;
  path: { node: number; name: string }[];
  total: number;
  /** Of the trace that this one is compared with. */
  total_before: number | null;
  /** How many nodes there are at and below `start`. */
  nodes: number;
  boxes: Boxes;
  strings: string[];
  measures: { name: string; meaning: string; unit: string }[];
  notes: string[];
}

/** Columns of one length, in preorder, the largest of siblings first. */
export interface Boxes {
  /** Of the tree; -1 for a rest, which stands for nodes too small to be told. */
  node: number[];
  parent: number[];
  name: number[];
  kind: number[];
  file: number[];
  line: number[];
  value: number[];
  own: number[];
  count: number[];
  hidden: number[];
  hot: number[];
  backward: number[];
  /** Where two profiles are compared: what it was, and what either has. */
  before?: number[];
  width?: number[];
}

export interface NodeFinding {
  id: number;
  rule: string;
  severity: "info" | "warning" | "critical";
  what: string;
  advice: string;
  nodes: number[];
}
