import type { JSX } from "preact";
import { percent } from "../base/format";

/** A bar for a share of the whole; its number stands beside it, so it says nothing to a reader. */
export function ShareBar(props: { share: number; kind?: string }): JSX.Element {
  const width = `${Math.min(Math.max(props.share, 0), 1) * 100}%`;
  return (
    <span class="share-bar" aria-hidden="true">
      <span class={`share-fill ${props.kind ?? ""}`} style={{ width }} />
    </span>
  );
}

export interface Piece {
  name: string;
  value: number;
  /** Class of its color, `c-…` in the style sheet. */
  color: string;
  text: string;
  hint?: string;
}

/** Parts of a whole, side by side, with a legend that tells their numbers. */
export function Stacked(props: { label: string; pieces: Piece[] }): JSX.Element {
  const pieces = props.pieces.filter((one) => one.value > 0);
  const total = pieces.reduce((sum, one) => sum + one.value, 0) || 1;
  return (
    <figure class="stacked" aria-label={props.label}>
      <div class="stacked-bar" aria-hidden="true">
        {pieces.map((one) => (
          <span
            key={one.name}
            class={one.color}
            style={{ width: `${(one.value / total) * 100}%` }}
            title={`${one.name}: ${one.text}`}
          />
        ))}
      </div>
      <ul class="legend">
        {pieces.map((one) => (
          <li key={one.name} title={one.hint}>
            <span class={`swatch ${one.color}`} aria-hidden="true" />
            <span class="legend-name">{one.name}</span>
            <span class="number">{one.text}</span>
            <span class="number dim">{percent(one.value / total)}</span>
          </li>
        ))}
      </ul>
    </figure>
  );
}
