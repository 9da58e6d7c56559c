import type { JSX } from "preact";
import type { Store } from "../state/store";

/** A pane below the timeline. One file makes one, and `views/index.ts` lists them. */
export interface Pane {
  /** In the URL, so it does not change. */
  id: string;
  title: string;
  hint: string;
  View: (props: { store: Store }) => JSX.Element;
}
