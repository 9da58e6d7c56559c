import type { Layout } from "../model/layout";
import type { Span } from "../model/span";
import type { Palette } from "./palette";

/** What a level shows besides its bars; operations by their number. */
export interface Scene {
  layout: Layout;
  /** What fills the width, ns since the level's start. */
  window: Span;
  palette: Palette;
  /** Raw events found in each operation, null where nothing is searched. */
  hits: readonly number[] | null;
  /** Whether a search is on, which dims what was not found. */
  dims: boolean;
  /** Whether each operation is bound by the device, by its number; null for none with both sides. */
  boundByDevice: (operation: number) => boolean | null;
}

/** What changes with the pointer and the keys: drawn on a layer of its own. */
export interface Highlight {
  hovered: number;
  chosen: number;
}

/** Draws levels. One implementation draws on two canvases; a faster one would take its place. */
export interface Renderer {
  /** Draws bars and names, and the outline of what is opened. */
  drawBase(scene: Scene): void;
  /** Draws outlines over them; nothing of the base is drawn again. */
  drawOverlay(scene: Scene, highlight: Highlight): void;
}
