/** The answers `changes` and `whatif` of `docs/web_api.md`. Times are means a step unless said. */

export interface Changes {
  changes: Change[];
}

export interface Change {
  name: string;
  summary: string;
  parameters: Parameter[];
  assumptions: string[];
  /** Whether it does on the trace as it is, with its defaults. */
  applies: boolean;
  reason: string;
}

export interface Parameter {
  name: string;
  type: string;
  /** Null where a value has to be given. */
  default: string | number | boolean | null;
  meaning: string;
}

export interface WhatIf {
  answer: Answer;
  timeline: { threads: Thread[]; before: Rectangles; after: Rectangles };
}

/** Why changes do not apply, or are written wrongly. */
export interface Refused {
  answer: null;
  timeline: null;
  reason: string;
}

export interface Answer {
  measured_step_ms: number;
  replayed_step_ms: number;
  replay_error: number;
  predicted_step_ms: number;
  /** Null where nothing would be left of the step. */
  speedup: number | null;
  range: [number, number];
  changes: string[];
  assumptions: string[];
  breakdown: Sides<Breakdown>;
  critical_path: Sides<{ stages: Record<string, number>; modules: Record<string, number> }>;
}

export interface Sides<T> {
  before: T;
  after: T;
}

export interface Breakdown {
  cpu_only_ms: number;
  device_only_ms: number;
  parallel_ms: number;
  idle_ms: number;
}

export interface Thread {
  name: string;
  kind: string;
  rank: number;
}

/** Columns of one length, thread by thread by time; all steps one after the other. */
export interface Rectangles {
  length_us: number;
  thread: number[];
  start_us: number[];
  duration_us: number[];
  name: string[];
  /** null outside all stages. */
  stage: (string | null)[];
  kind: (string | null)[];
  /** How many tasks one stands for; its name is that of the longest. */
  tasks: number[];
}
