import { Lru } from "../base/lru";
import { prefixes } from "../base/path";
import type { Host } from "./host";
import { requestKey, type Parameters } from "./request";
import { TileRequests } from "./tile_requests";
import type * as wire from "./types";

const KEPT_ANSWERS = 400;
const KEPT_LEVELS = 2000;

/** Which rows a table tells: of a rank, as means over its steps or of one. */
export interface Scope {
  rank: number;
  step?: number | undefined;
}

/** What a pane can choose besides an operation. */
export type Subject =
  | { module: number }
  | { kernel: string }
  | { file: string; line: number }
  | { finding: number; place?: number }
  | { event: number };

/** The questions about one trace; answers are kept, as a trace does not change. */
export class Client {
  private readonly answers = new Lru<Promise<unknown>>(KEPT_ANSWERS);
  private readonly known = new Lru<wire.WireLevel>(KEPT_LEVELS);

  private readonly opened = new Lru<true>(KEPT_ANSWERS);
  /** What the axis shows; kept by who asks, as there are many. */
  readonly tiles: TileRequests;

  constructor(
    readonly host: Host,
    readonly trace: string,
  ) {
    this.tiles = new TileRequests(host, trace);
  }

  overview(scope?: Scope): Promise<wire.Overview> {
    return this.ask("overview", { ...scope });
  }

  area(from: number, to: number, tracks: readonly string[], by: string): Promise<wire.AreaAnswer> {
    return this.ask("area", { from, to, tracks: tracks.join(","), by });
  }

  modules(scope: Scope): Promise<wire.Modules> {
    return this.ask("modules", { ...scope });
  }

  kernels(scope: Scope): Promise<wire.Kernels> {
    return this.ask("kernels", { ...scope });
  }

  collectives(scope: Scope): Promise<wire.Collectives> {
    return this.ask("collectives", { ...scope });
  }

  arrivals(scope: Scope): Promise<wire.ArrivalMatrix> {
    return this.ask("arrivals", { ...scope });
  }

  findings(): Promise<wire.Findings> {
    return this.ask("findings");
  }

  details(path: string): Promise<wire.Details> {
    return this.ask("details", { path });
  }

  placeOf(event: number): Promise<wire.Place> {
    return this.ask("path", { event });
  }

  search(text: string, path: string, every: boolean): Promise<wire.SearchAnswer> {
    return this.ask("search", { text, path, every });
  }

  searchHits(text: string): Promise<wire.SearchHits> {
    return this.ask("search_hits", { text });
  }

  select(subject: Subject, path: string, every: boolean): Promise<wire.Selected> {
    return this.ask("select", { ...subject, path, every });
  }

  /** @param whole of the whole recording, where contexts were collected beside steps. */
  sources(scope: Scope | null, whole: boolean): Promise<wire.Sources> {
    return this.ask("sources", { ...scope, whole });
  }

  source(file: string, scope: Scope | null, whole: boolean): Promise<wire.Source> {
    return this.ask("source", { ...scope, file, whole });
  }

  /** Raw events of an operation as a Chrome trace. */
  rawEvents(path: string): Promise<unknown> {
    return this.host.ask(this.trace, requestKey("trace", { path }));
  }

  /** All levels down to the one inside a path; only the last is asked for where the rest is known. */
  async levels(path: string, every: boolean): Promise<wire.WireLevel[]> {
    const paths = prefixes(path);
    const missing = paths.filter((one) => !this.known.get(levelKey(one, every)));
    if (missing.length === 1) {
      const one = missing[0]!;
      const answer = await this.ask<{ level: wire.WireLevel }>("level", { path: one, every });
      this.known.set(levelKey(one, every), answer.level);
    } else if (missing.length) {
      const answer = await this.ask<{ levels: wire.WireLevel[] }>("levels", { path, every });
      answer.levels.forEach((level) => this.known.set(levelKey(level.path, every), level));
    }
    return this.knownLevels(path, every)!;
  }

  /** The same levels where all of them are here. */
  knownLevels(path: string, every: boolean): wire.WireLevel[] | null {
    const levels = prefixes(path).map((one) => this.known.get(levelKey(one, every)));
    return levels.every((one) => one !== undefined) ? levels : null;
  }

  /** Whether the levels inside the operations of a level were asked for. */
  knowsInside(path: string, every: boolean): boolean {
    return this.opened.get(levelKey(path, every)) ?? false;
  }

  /** Asks for the levels inside the operations of a level, once; then they are known. */
  async askInside(path: string, every: boolean, signal?: AbortSignal): Promise<void> {
    if (this.knowsInside(path, every)) return;
    const key = requestKey("levels_inside", { path, every });
    const answer = (await this.host.ask(this.trace, key, true, signal)) as wire.Levels;
    answer.levels.forEach((level) => this.known.set(levelKey(level.path, every), level));
    this.opened.set(levelKey(path, every), true);
  }

  /** Any request of `docs/reference/web_api.md` about the trace. */
  ask<T>(name: string, parameters: Parameters = {}): Promise<T> {
    const key = requestKey(name, parameters);
    const kept = this.answers.get(key);
    if (kept) return kept as Promise<T>;
    const answer = this.host.ask(this.trace, key);
    this.answers.set(key, answer);
    answer.catch(() => this.answers.delete(key)); // so that the next time asks again
    return answer as Promise<T>;
  }
}

function levelKey(path: string, every: boolean): string {
  return every ? `*${path}` : path;
}
