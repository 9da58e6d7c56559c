import { computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type { JobAnswer, JobRank } from "../api/ranks_types";
import { words } from "../base/format";
import { heatOf, heatOfExcess, runsOf, type Heat, type Run } from "../model/heat";

/** All that a URL says of what is on screen. */
export interface JobView {
  /** The chosen rank, by its number; null for none. */
  rank: number | null;
  /** What the ranks are sorted by: `rank`, `node`, `own work`, or one of the job's axes. */
  by: string;
  /** Of what the lower map shows each step. */
  part: string;
}

/** What the page about a job shows. */
export class JobStore {
  readonly view: Signal<JobView>;
  /** The places in `job.ranks`, as they are drawn from left to right. */
  readonly order: ReadonlySignal<number[]>;
  readonly runs: ReadonlySignal<Run[]>;
  /** The stages that take notable time, by their place in `job.stages`. */
  readonly shown: number[];
  readonly stages: Heat;
  readonly steps: ReadonlySignal<Heat>;
  /** How much later each rank arrives at collectives than the median rank. */
  readonly lateness: Heat;
  readonly orders: string[];
  /** Of each rank, in all stages. */
  readonly own: number[];
  private readonly places: ReadonlyMap<number, number>;

  constructor(readonly job: JobAnswer) {
    const { stages, ranks, step_ms } = job;
    this.own = ranks.map((_, place) => job.work.reduce((sum, row) => sum + row[place]!, 0));
    const all = stages.map((_, stage) => stage);
    this.shown = all.filter((one) => job.work[one]!.some((ms) => ms > LEAST_SHARE * step_ms));
    const names = [...this.shown.map((one) => partName(stages[one]!)), ALL];
    this.stages = heatOf(names, [...this.shown.map((one) => job.work[one]!), this.own], step_ms);
    this.lateness = heatOfExcess(
      job.lateness.map((one) => one.name),
      job.lateness.map((one) => one.late_ms.map((late) => late / (step_ms || 1))),
    );
    this.places = new Map(ranks.map((one, place) => [one.rank, place]));
    const nodes = new Set(ranks.map((one) => one.node));
    this.orders = ["rank", ...(nodes.size > 1 ? ["node"] : []), ...Object.keys(job.axes), ALL];
    const view = (this.view = signal(this.fromHash(location.hash)));
    const by = computed(() => view.value.by);
    const part = computed(() => view.value.part);
    this.order = computed(() => this.sorted(by.value));
    this.runs = computed(() =>
      runsOf(this.order.value.map((place) => this.groupOf(by.value, place))),
    );
    this.steps = computed(() =>
      heatOf(
        job.steps.map((one) => `step ${one}`),
        job.by_step[part.value]!,
        step_ms,
      ),
    );
    effect(() => {
      const hash = toHash(view.value);
      if (hash !== location.hash) history.replaceState(null, "", hash || " ");
    });
    addEventListener("hashchange", () => (view.value = this.fromHash(location.hash)));
  }

  set(change: Partial<JobView>): void {
    this.view.value = { ...this.view.value, ...change };
  }

  /** The chosen rank's place in `job.ranks`; -1 for none. */
  get chosen(): number {
    const { rank } = this.view.value;
    return rank === null ? -1 : (this.places.get(rank) ?? -1);
  }

  placeOf(rank: number): number {
    return this.places.get(rank) ?? -1;
  }

  /** The next rank to the right or to the left on screen. */
  walk(by: number): void {
    const order = this.order.value;
    const now = order.indexOf(this.chosen);
    const next = now < 0 ? 0 : Math.min(Math.max(now + by, 0), order.length - 1);
    this.set({ rank: this.job.ranks[order[next]!]!.rank });
  }

  private sorted(by: string): number[] {
    const { ranks, axes } = this.job;
    const places = ranks.map((_, place) => place);
    if (by === ALL) return places.sort((a, b) => this.own[b]! - this.own[a]! || a - b);
    if (by === "node") return places.sort((a, b) => compareNodes(ranks[a]!, ranks[b]!) || a - b);
    const axis = axes[by];
    return axis ? places.sort((a, b) => axis[a]! - axis[b]! || a - b) : places;
  }

  /** The name below a stretch of ranks; empty where they are no groups. */
  private groupOf(by: string, place: number): string {
    const { node, rank } = this.job.ranks[place]!;
    if (by === "node" || (by === "rank" && node)) return node;
    if (by === "rank" || by === ALL) return `rank ${rank}`;
    const group = this.job.axes[by]?.[place];
    return group === undefined || group < 0 ? "" : `${by} ${group}`;
  }

  private fromHash(hash: string): JobView {
    const said = new URLSearchParams(hash.replace(/^#/, ""));
    const rank = said.get("rank") ?? "";
    const by = said.get("by") ?? "";
    const part = said.get("part") ?? "";
    return {
      rank: /^\d{1,9}$/.test(rank) ? Number(rank) : null,
      by: this.orders.includes(by) ? by : this.orders.includes("node") ? "node" : "rank",
      part: part in this.job.by_step ? part : ALL,
    };
  }
}

/** `host` alone would not say that it is a time. */
export function partName(stage: string): string {
  return stage === "host" ? "host-bound" : words(stage);
}

/** The order and the part of a step that are about all stages. */
export const ALL = "own work";
/** Stages that take less than this share of the step on every rank are left out. */
const LEAST_SHARE = 0.001;

/** `node-2` before `node-10`. */
function compareNodes(a: JobRank, b: JobRank): number {
  return a.node.localeCompare(b.node, "en", { numeric: true });
}

function toHash({ rank, by, part }: JobView): string {
  const said = new URLSearchParams();
  if (rank !== null) said.set("rank", String(rank));
  said.set("by", by);
  if (part !== ALL) said.set("part", part);
  return `#${said.toString()}`;
}
