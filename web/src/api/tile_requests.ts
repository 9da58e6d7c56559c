import type { Host } from "./host";
import { requestKey } from "./request";
import type * as wire from "./types";

/** As many as the server answers at once. */
const MOST = 32;

type Tile = wire.Slices | wire.CounterTile;
type Kind = keyof wire.Tiles;

interface Asked {
  kind: Kind;
  place: string;
  answer: (tile: Tile) => void;
  fail: (why: unknown) => void;
}

/**
 * Tiles of tracks and counters. Those that a server is asked for at one moment are one request, as
 * each takes time of the page; a file has each by itself.
 */
export class TileRequests {
  private waiting: Asked[] = [];

  constructor(
    private readonly host: Host,
    private readonly trace: string,
  ) {}

  slices(track: string, zoom: number, tile: number): Promise<wire.Slices> {
    if (this.host.live) return this.together("slices", `${track}:${zoom}:${tile}`);
    return this.ask(requestKey("slices", { track, zoom, tile }));
  }

  counter(counter: string, zoom: number, tile: number): Promise<wire.CounterTile> {
    if (this.host.live) return this.together("counters", `${counter}:${zoom}:${tile}`);
    return this.ask(requestKey("counter", { counter, zoom, tile }));
  }

  private ask<T>(key: string): Promise<T> {
    return this.host.ask(this.trace, key, true) as Promise<T>;
  }

  private together<T extends Tile>(kind: Kind, place: string): Promise<T> {
    if (!this.waiting.length) queueMicrotask(() => this.sendAll());
    return new Promise<Tile>((answer, fail) => {
      this.waiting.push({ kind, place, answer, fail });
    }) as Promise<T>;
  }

  private sendAll(): void {
    const asked = this.waiting;
    this.waiting = [];
    for (let at = 0; at < asked.length; at += MOST) void this.send(asked.slice(at, at + MOST));
  }

  private async send(asked: readonly Asked[]): Promise<void> {
    const wanted = asked.map((one) => one.place).join(",");
    try {
      const found = await this.ask<wire.Tiles>(requestKey("tiles", { wanted }));
      const tiles = { slices: found.slices.values(), counters: found.counters.values() };
      for (const one of asked) one.answer(tiles[one.kind].next().value!);
    } catch (why) {
      for (const one of asked) one.fail(why);
    }
  }
}
