import { holds, prefixes } from "../base/path";
import { AskError, type Host } from "./host";
import { EmbeddedStep } from "./embedded_step";
import { allHits, hitsIn, matchesIn, type Match } from "./embedded_search";
import { parseKey, requestKey } from "./request";
import type {
  DetailColumns,
  Overview,
  Place,
  SearchAnswer,
  StepAnswer,
  Traces,
  WireLevel,
} from "./types";

/** The id of the element that holds the data of a single file. */
export const DATA_ELEMENT = "stepscope-data";

const NOT_PAIRED =
  "Only the step that this file opens with is paired, with what the file holds; stepscope view pairs any.";

export interface Embedded {
  traces: Traces;
  answers: Record<string, unknown>;
  left_out: string[];
}

interface TraceEvents {
  traceEvents: { ph: string; id?: unknown; ts?: number; args?: Record<string, unknown> }[];
}

/** `stepscope report --html`: the answers lie in the file, and few are worked out of others. */
export class EmbeddedHost implements Host {
  readonly live = false;

  private readonly steps: Map<string, EmbeddedStep>;

  constructor(private readonly data: Embedded) {
    const keys = Object.keys(data.answers).filter((key) => parseKey(key).name === "step");
    const steps = keys.map((key) => data.answers[key] as StepAnswer);
    this.steps = new Map(
      steps.map((step) => {
        const details = data.answers[requestKey("step_details", { path: step.path })];
        return [step.path, new EmbeddedStep(step, details as DetailColumns | undefined)];
      }),
    );
  }

  get leftOut(): readonly string[] {
    return this.data.left_out;
  }

  get whatIfs(): readonly string[] {
    const asked = Object.keys(this.data.answers).map(parseKey);
    return asked.filter((one) => one.name === "whatif").map((one) => one.parameters.changes ?? "");
  }

  traces(): Promise<Traces> {
    return Promise.resolve(this.data.traces);
  }

  async open(): Promise<void> {}

  async ask(trace: string, request: string): Promise<unknown> {
    if (this.isCompared(trace)) return this.answer(`${trace}/${request}`);
    const found = this.data.answers[request];
    if (found !== undefined) return found;
    const { name, parameters } = parseKey(request);
    switch (name) {
      case "levels":
        return { path: parameters.path ?? "", levels: this.levels(parameters) };
      case "level":
        return { path: parameters.path ?? "", level: this.level(parameters) };
      case "memory_moment":
        return this.nearestMoment(parameters);
      case "memory_tile":
      case "slices":
      case "counter":
        return this.tile(name, parameters);
      case "search":
        return this.search(parameters);
      case "search_hits":
        return allHits(parameters.text ?? "", this.matches(parameters.text ?? ""));
      case "path":
        return this.placeOf(Number(parameters.event));
      case "details":
        return this.details(parameters.path ?? "");
      case "select":
        return this.select(parameters);
      case "trace":
        return this.part(parameters.path ?? "");
      case "whatif":
        return this.answer(requestKey(name, { changes: parameters.changes }));
      case "pair":
        throw new AskError(NOT_PAIRED, 404);
      case "arrivals": // of ranks together
        return this.answer(requestKey(name, { step: parameters.step }));
      case "diff":
        throw this.notCompared(parameters);
      case "modules":
      case "kernels":
      case "collectives":
      case "overview":
      case "sources":
      case "source":
        return this.ofRank(name, parameters);
    }
    throw this.missing();
  }

  /** Whether a file holds no more of a trace than what it was compared by. */
  private isCompared(trace: string): boolean {
    return this.data.traces.traces.some((one) => one.id === trace && one.state === "compared");
  }

  private answer(key: string): unknown {
    const found = this.data.answers[key];
    if (found === undefined) throw this.missing();
    return found;
  }

  /** Means over the steps of a rank, where a file has no answer about one step. */
  private ofRank(name: string, { rank, file }: Record<string, string>): unknown {
    const opened = (this.data.answers.overview as Overview | undefined)?.rank;
    const other = rank !== undefined && Number(rank) !== opened;
    return this.answer(requestKey(name, { rank: other ? rank : undefined, file }));
  }

  private missing(): AskError {
    const why = this.data.left_out.join("; ");
    return new AskError(`Not in this file${why ? `, which leaves out ${why}` : ""}.`, 404);
  }

  private notCompared({ rank, against, against_rank }: Record<string, string>): AskError {
    const other = [against, against_rank && `rank ${against_rank}`].filter(Boolean).join(", ");
    const why = `This file does not compare rank ${rank} with ${other}: stepscope view compares any two.`;
    return new AskError(why, 404);
  }

  /** The step that a path leads through. */
  private step(path: string): EmbeddedStep {
    const found = this.steps.get(path.split("/", 1)[0]!);
    if (!found) throw this.missing();
    return found;
  }

  private level(parameters: Record<string, string>): WireLevel {
    const path = parameters.path ?? "";
    const every = parameters.every === "1";
    if (!path) return (this.answer(requestKey("level", { every })) as { level: WireLevel }).level;
    const found = this.step(path).level(path, every);
    if (!found) throw this.missing();
    return found;
  }

  private details(path: string): unknown {
    const found = this.step(path).details(path);
    if (!found) throw this.missing();
    return found;
  }

  private levels(parameters: Record<string, string>): WireLevel[] {
    return prefixes(parameters.path ?? "").map((path) => this.level({ ...parameters, path }));
  }

  /** What lives at the moment nearest to one, among those that are here. */
  private nearestMoment({ device, time }: Record<string, string>): unknown {
    const { answers } = this.data;
    const moments = Object.keys(answers)
      .filter((key) => key.startsWith("memory_moment?"))
      .map((key) => ({ key, asked: parseKey(key).parameters }))
      .filter(({ asked }) => asked.device === device && asked.time !== undefined)
      .map(({ key, asked }) => ({ key, away: Math.abs(Number(asked.time) - Number(time)) }));
    const nearest = moments.sort((a, b) => a.away - b.away)[0];
    return this.answer(nearest?.key ?? requestKey("memory_moment", { device }));
  }

  /** A tile of a track or a counter, or the finest one around it that is here. */
  private tile(name: string, { zoom, tile, ...of }: Record<string, string>): unknown {
    let at = Number(tile);
    for (let level = Number(zoom); level >= 0; level--, at = Math.floor(at / 2)) {
      const found = this.data.answers[requestKey(name, { ...of, zoom: level, tile: at })];
      if (found !== undefined) return found;
    }
    throw this.missing();
  }

  private search({ text = "", ...parameters }: Record<string, string>): SearchAnswer {
    const found = this.matches(text);
    const levels = this.levels(parameters).map((level) => hitsIn(level, found));
    return { text, total: found.length, levels };
  }

  private matches(text: string): Match[] {
    return [...this.steps.values()].flatMap((step) => matchesIn(step, text));
  }

  private placeOf(event: number): Place {
    for (const step of this.steps.values()) {
      const path = step.pathOf(event);
      if (path === undefined) continue;
      return { event, path, level: path.slice(0, Math.max(path.lastIndexOf("/"), 0)) };
    }
    throw this.missing();
  }

  /** A choice in a pane: without what was on screen, which the file cannot know. */
  private select(parameters: Record<string, string>): unknown {
    const { path: _path, every: _every, ...subject } = parameters;
    return this.answer(requestKey("select", subject));
  }

  /** The raw events of an operation, out of those of its step. */
  private part(path: string): TraceEvents {
    const step = path.split("/")[0] ?? "";
    const whole = this.answer(requestKey("trace", { path: step })) as TraceEvents;
    if (path === step) return whole;
    return cutTrace(whole, eventsInside(this.step(path), path));
  }
}

function eventsInside(step: EmbeddedStep, path: string): Set<number> {
  const { event, place } = step.answer.events;
  const inside = step.paths.map((one) => holds(path, one));
  return new Set(event.filter((_, row) => inside[place[row]!]));
}

/** Slices of the events that are kept; of the rest what names tracks and arrows between the kept. */
function cutTrace(whole: TraceEvents, kept: Set<number>): TraceEvents {
  const slices = whole.traceEvents.filter(
    (one) => one.ph === "X" && kept.has(one.args?.["stepscope event"] as number),
  );
  const names = whole.traceEvents.filter((one) => one.ph === "M");
  const times = new Set(slices.map((one) => one.ts));
  const arrows = whole.traceEvents.filter((one) => "stf".includes(one.ph));
  const ends = new Map<unknown, number>();
  for (const one of arrows) if (times.has(one.ts)) ends.set(one.id, (ends.get(one.id) ?? 0) + 1);
  const both = arrows.filter((one) => (ends.get(one.id) ?? 0) > 1);
  return { ...whole, traceEvents: [...names, ...slices, ...both] };
}
