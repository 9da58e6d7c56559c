/** The answer of `serve/batch.py`: one entry file at several batch sizes. Times are ms. */

export interface Prediction {
  batch: number;
  ms: number;
  ms_range: [number, number];
  throughput: number;
  throughput_range: [number, number | null];
  bytes?: number;
  bytes_range?: [number, number];
  memory?: Record<string, number>;
}

export interface Point {
  batch: number;
  ms: number;
  bytes: number;
  throughput: number;
  held_back: boolean;
}

export interface CostNode {
  name: string;
  kind: "step" | "module" | "stage" | "operator";
  ms: number;
  forward_ms: number;
  backward_ms: number;
  bytes: number;
  self_ms: number;
  self_bytes: number;
  class?: string;
  path?: string;
  file?: string | null;
  line?: number | null;
  calls: number;
  children: CostNode[];
  [more: string]: unknown;
}

export interface Breakdown {
  batch: number;
  step_ms: number;
  peak_bytes: number;
  memory: Record<string, number>;
  tree: CostNode;
}

export interface BatchProfile {
  entry: string;
  batch: number;
  sentence: string;
  site: { path: string; line: number; name: string; text: string };
  points: Point[];
  max_throughput: number | null;
  fit_error: number | null;
  memory_fit_error: number | null;
  too_large: number | null;
  capacity: number | null;
  device: { type?: string; name?: string };
  warnings: string[];
  now: Prediction;
  suggestions: Prediction[];
  curve: Prediction[];
  breakdown?: Breakdown;
}

export interface BatchAnswer {
  batch: BatchProfile | null;
  problem: string | null;
  /** The batch size in the source as it is now; what was measured may be older. */
  written: number | null;
}
