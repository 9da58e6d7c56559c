import type { ComponentChildren, JSX } from "preact";
import { TERMS } from "../base/glossary";

const DEFINITIONS = new Map(TERMS);

/** A word of the glossary, with its definition as a tooltip. */
export function Term(props: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <abbr class="term" title={DEFINITIONS.get(props.name) ?? props.name}>
      {props.children}
    </abbr>
  );
}
