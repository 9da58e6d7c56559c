import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ModuleNode } from "../../api/types";
import { matching } from "../../model/commands";
import { latest } from "../../state/latest";
import { perStore } from "../../state/per_store";
import type { Store } from "../../state/store";
import { axisOf } from "../../state/axis";
import { panesOf } from "../index";
import { sharesOf } from "../share";
import { shownOf } from "../timeline/pair";
import { ACTIONS } from "./keys";

const KINDS = ["action", "pane", "track", "kernel", "module"] as const;

/** Something that can be gone to by its name. */
interface Command {
  kind: (typeof KINDS)[number];
  name: string;
  key?: string;
  run: () => void;
}

/** Kernels and modules are asked for once the palette is open. */
const partsOf = perStore((store) =>
  latest(() => {
    const [client, scope] = [store.client.value, store.scope.value];
    if (!client || !scope || !store.paletteShown.value) return null;
    return Promise.all([client.kernels(scope), client.modules(scope)]);
  }),
);

function commandsOf(store: Store): Command[] {
  const axis = axisOf(store);
  const [kernels, modules] = partsOf(store).value.value ?? [null, null];
  const tracks = axis.about.value.value?.tracks.filter((one) => one.kind !== "stages") ?? [];
  const several = (store.overview.value.value?.ranks.length ?? 1) > 1;
  const pin = (id: string): void => {
    if (!axis.pinned.value.includes(id)) axis.pin(id);
    store.set({ over: "" });
  };
  return [
    ...Object.entries(ACTIONS).filter(([key]) => key !== "p" || store.host.live).map(([key, { name, run }]): Command => ({ kind: "action", name, key, run: () => run(store) })),
    ...shownOf(store).map(({ name, run }): Command => ({ kind: "action", name: `Timeline: ${name.toLowerCase()}`, run })),
    ...sharesOf(store).map((one): Command => ({ kind: "action", ...one })),
    ...panesOf(store).map((one): Command => ({ kind: "pane", name: one.title, run: () => store.set({ pane: one.id }) })),
    ...tracks.map((one): Command => ({ kind: "track", name: several ? `${one.name}, rank ${one.rank}` : one.name, run: () => pin(one.id) })),
    ...(kernels?.rows ?? []).map((one): Command => ({ kind: "kernel", name: one.name, run: () => void store.choosePart({ kernel: one.name }) })),
    ...flat(modules?.tree ?? []).map((one): Command => ({ kind: "module", name: one.path || "(model)", run: () => void store.choosePart({ module: one.modules[0]! }) })),
  ]; // prettier-ignore
}

function flat(nodes: readonly ModuleNode[]): ModuleNode[] {
  return nodes.flatMap((one) => [one, ...flat(one.children)]);
}

/** Ctrl+K: actions, panes, tracks, kernels and modules by their names. */
export function Palette({ store }: { store: Store }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const shown = store.paletteShown.value;
  useEffect(() => {
    if (shown) dialog.current?.showModal();
    else dialog.current?.close();
  }, [shown]);
  return (
    <dialog
      ref={dialog}
      class="palette"
      aria-label="Command palette"
      onClose={() => (store.paletteShown.value = false)}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      {shown && <Choice store={store} />}
    </dialog>
  );
}

function Choice({ store }: { store: Store }): JSX.Element {
  const text = useSignal("");
  const at = useSignal(0);
  const all = commandsOf(store);
  const found = useMemo(() => matching(all, text.value), [all.length, text.value]);
  const run = (command: Command | undefined): void => {
    store.paletteShown.value = false;
    command?.run();
  };
  const press = (event: KeyboardEvent): void => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) at.value = Math.min(Math.max(at.value + by, 0), found.length - 1);
    else if (event.key === "Enter") run(found[at.value]);
    else return;
    event.preventDefault();
  };
  useEffect(() => {
    document.getElementById(`command-${at.value}`)?.scrollIntoView({ block: "nearest" });
  }, [at.value]);
  return (
    <>
      <input
        type="text"
        role="combobox"
        aria-label="Command, pane, track, kernel or module"
        aria-expanded="true"
        aria-controls="commands"
        aria-activedescendant={found.length ? `command-${at.value}` : undefined}
        placeholder="Command, pane, track, kernel or module"
        autoFocus
        onInput={(event) => {
          text.value = event.currentTarget.value;
          at.value = 0;
        }}
        onKeyDown={press}
      />
      <ul id="commands" role="listbox" aria-label="Commands">
        {found.map((one, i) => (
          <li key={`${one.kind} ${i}`} id={`command-${i}`} role="option" aria-selected={i === at.value} onPointerMove={() => (at.value = i)} onClick={() => run(one)}>
            <span class="palette-name">{one.name}</span>
            <span class="dim">{one.kind}</span>
            {one.key && <kbd>{one.key}</kbd>}
          </li>
        ))}
      </ul>
      {!found.length && <p class="dim">Nothing has this name.</p>}
    </>
  ); // prettier-ignore
}
