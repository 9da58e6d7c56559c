import type { Axis } from "../api/types";
import { painted } from "../base/frame";
import { Lru } from "../base/lru";
import type { Span } from "../model/span";
import { around, rangeOf, tilesOf, type Piece, type TileKey, type TileScale } from "../model/tiles";
import { awaiting } from "./awaited";

/** Tiles that are kept; more where twice what is on screen is more. */
const KEPT_TILES = 600;

/** The tiles of one trace of one kind: asked for once they are in sight, and kept. */
export class Tiles<T extends TileKey & { exact: boolean }, A extends TileScale = Axis> {
  private readonly kept = new Lru<T | "asked" | "missing">(KEPT_TILES);

  /**
   * @param ask gets the tile of a track or a counter.
   * @param arrived is called when one came, or could not be had.
   */
  constructor(
    private readonly ask: (id: string, axis: A, key: TileKey) => Promise<T>,
    private readonly arrived: () => void,
  ) {}

  /**
   * The tiles that show a window: those wanted, or coarser ones until they arrive.
   *
   * @param rows how many tracks or counters are on screen.
   */
  shown(id: string, axis: A, window: Span, pixels: number, rows: number): Piece<T>[] {
    const found: Piece<T>[] = [];
    const keys = tilesOf(axis, window, pixels);
    this.kept.size = Math.max(KEPT_TILES, 2 * keys.length * rows);
    for (const key of keys) {
      const tile = this.best(id, axis, key);
      const range = rangeOf(axis, key);
      const before = found.at(-1);
      if (tile && before?.tile === tile) before.to = range.to;
      else if (tile) found.push({ tile, ...range });
    }
    return found;
  }

  /** A tile, an exact one around it, or a coarser one while it is on its way. */
  private best(id: string, axis: A, key: TileKey): T | null {
    let coarser: T | null = null;
    let missing = false;
    for (let one: TileKey | null = key; one; one = around(one)) {
      const tile = this.kept.get(keyOf(id, one));
      if (typeof tile === "object") {
        if (tile.exact || one === key) return tile;
        coarser ??= tile;
      }
      if (one === key) missing = tile === undefined;
    }
    if (missing) void this.fetch(id, axis, key);
    return coarser;
  }

  private async fetch(id: string, axis: A, key: TileKey): Promise<void> {
    this.kept.set(keyOf(id, key), "asked");
    try {
      const tile = await awaiting(painted().then(() => this.ask(id, axis, key)));
      this.kept.set(keyOf(id, tile), tile);
      this.kept.set(keyOf(id, key), tile);
    } catch {
      this.kept.set(keyOf(id, key), "missing");
    }
    this.arrived();
  }
}

function keyOf(id: string, { zoom, tile }: TileKey): string {
  return `${id}/${zoom}/${tile}`;
}
