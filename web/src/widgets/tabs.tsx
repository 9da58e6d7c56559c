import type { JSX } from "preact";

export interface Tab {
  id: string;
  title: string;
  hint: string;
}

/** Tabs of a panel, each followed by its further sections; left and right move between all. */
export function Tabs(props: {
  tabs: Tab[][];
  chosen: string;
  panel: string;
  onChoose: (id: string) => void;
}): JSX.Element {
  const all = props.tabs.flat();
  const walk = (event: KeyboardEvent): void => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const at = all.findIndex((one) => one.id === props.chosen);
    const next = all[(at + step + all.length) % all.length]!;
    props.onChoose(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  const button = (one: Tab, place: number): JSX.Element => (
    <button
      key={one.id}
      id={`tab-${one.id}`}
      type="button"
      role="tab"
      class={place === 0 ? "lead" : "section"}
      title={one.hint}
      aria-selected={one.id === props.chosen}
      aria-controls={props.panel}
      tabIndex={one.id === props.chosen ? 0 : -1}
      onClick={() => props.onChoose(one.id)}
    >
      {one.title}
    </button>
  );
  return (
    <div class="tabs" role="tablist" aria-label="Panes" onKeyDown={walk}>
      {props.tabs.map((sections) => (
        <span
          key={sections[0]!.id}
          role="presentation"
          class={`tab ${sections.some((one) => one.id === props.chosen) ? "open" : ""}`}
        >
          {sections.map(button)}
        </span>
      ))}
    </div>
  );
}
