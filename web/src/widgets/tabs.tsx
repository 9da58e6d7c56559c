import type { JSX } from "preact";

export interface Tab {
  id: string;
  title: string;
  hint: string;
}

/** Tabs of a panel; left and right move between them. */
export function Tabs(props: {
  tabs: Tab[];
  chosen: string;
  panel: string;
  onChoose: (id: string) => void;
}): JSX.Element {
  const walk = (event: KeyboardEvent): void => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const at = props.tabs.findIndex((one) => one.id === props.chosen);
    const next = props.tabs[(at + step + props.tabs.length) % props.tabs.length]!;
    props.onChoose(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="tabs" role="tablist" aria-label="Panes" onKeyDown={walk}>
      {props.tabs.map((one) => (
        <button
          key={one.id}
          id={`tab-${one.id}`}
          type="button"
          role="tab"
          title={one.hint}
          aria-selected={one.id === props.chosen}
          aria-controls={props.panel}
          tabIndex={one.id === props.chosen ? 0 : -1}
          onClick={() => props.onChoose(one.id)}
        >
          {one.title}
        </button>
      ))}
    </div>
  );
}
