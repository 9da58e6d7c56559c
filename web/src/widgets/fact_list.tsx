import type { ComponentChildren, JSX } from "preact";

/** A name, what it is, and a hint for the pointer. */
export type Fact = readonly [name: string, value: ComponentChildren, hint?: string];

/** Names with their values. */
export function FactList(props: { facts: readonly Fact[]; class?: string }): JSX.Element {
  return (
    <dl class={props.class}>
      {props.facts.map(([name, value, hint]) => (
        <div key={name} title={hint}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
