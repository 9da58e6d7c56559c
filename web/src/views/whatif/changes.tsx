import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { ListedChange, Parameter } from "../../api/types";
import { missing, moved, parseRequest, valueOf, withValue } from "../../model/changes";
import type { Store } from "../../state/store";

/** The changes: those switched on in their order, then those that apply, then the others. */
export function ChangeList({ store, known }: { store: Store; known: ListedChange[] }): JSX.Element {
  const on = store.view.value.changes;
  const names = new Set(on.map((text) => parseRequest(text).name));
  const off = known.filter((one) => !names.has(one.name));
  const set = (changes: string[]): void => store.set({ changes });
  return (
    <>
      <div class="whatif-head">
        <h2>{on.length ? "On, applied in this order" : "Switch changes on"}</h2>
        {on.length > 0 && (
          <button type="button" class="chip" onClick={() => set([])}>
            All off
          </button>
        )}
      </div>
      <ol class="whatif-list">
        {on.map((text, index) => (
          <On
            key={`${index} ${parseRequest(text).name}`}
            text={text}
            change={known.find((one) => one.name === parseRequest(text).name)}
            place={index}
            count={on.length}
            onText={(now) => set(on.map((one, i) => (i === index ? now : one)))}
            onMove={(by) => set(moved(on, index, by))}
            onOff={() => set(on.filter((_, i) => i !== index))}
          />
        ))}
      </ol>
      <ul class="whatif-list">
        {[...off.filter((one) => one.applies), ...off.filter((one) => !one.applies)].map((one) => (
          <Off key={one.name} change={one} onOn={() => set([...on, one.name])} />
        ))}
      </ul>
    </>
  );
}

function Off({ change, onOn }: { change: ListedChange; onOn: () => void }): JSX.Element {
  // It may apply after another change, or with other parameters: so it can be tried.
  return (
    <li class={`whatif-change ${change.applies ? "" : "whatif-not"}`} data-change={change.name}>
      <label>
        <input type="checkbox" role="switch" checked={false} onChange={onOn} />
        <strong>{change.name}</strong>
      </label>
      <p>{change.summary}</p>
      {change.reason && (
        <p class="whatif-reason">
          {change.applies ? "" : "Does not apply by itself: "}
          {change.reason}
        </p>
      )}
    </li>
  );
}

function On(props: {
  text: string;
  change: ListedChange | undefined;
  place: number;
  count: number;
  onText: (text: string) => void;
  onMove: (by: -1 | 1) => void;
  onOff: () => void;
}): JSX.Element {
  const { text, change, place, count } = props;
  const { name } = parseRequest(text);
  const waits = missing(text, change);
  return (
    <li class="whatif-change whatif-on" data-change={name}>
      <div class="whatif-head">
        <label>
          <input type="checkbox" role="switch" checked onChange={props.onOff} />
          <strong>{name}</strong>
        </label>
        {count > 1 && (
          <span class="whatif-order">
            <button
              type="button"
              class="chip"
              aria-label={`${name} earlier`}
              disabled={place === 0}
              onClick={() => props.onMove(-1)}
            >
              ↑
            </button>
            <button
              type="button"
              class="chip"
              aria-label={`${name} later`}
              disabled={place === count - 1}
              onClick={() => props.onMove(1)}
            >
              ↓
            </button>
          </span>
        )}
      </div>
      <p>{change?.summary}</p>
      {change?.parameters.map((one) => (
        <Field key={one.name} text={text} parameter={one} onText={props.onText} />
      ))}
      {waits.length > 0 && (
        <p class="whatif-reason" role="status">
          Ignored until it has {waits.join(" and ")}.
        </p>
      )}
    </li>
  );
}

function Field(props: {
  text: string;
  parameter: Parameter;
  onText: (text: string) => void;
}): JSX.Element {
  const { text, parameter, onText } = props;
  const value = valueOf(text, parameter);
  // What is being typed stays when an answer comes meanwhile.
  const typed = useSignal<string | null>(null);
  const change = (now: string): void => onText(withValue(text, parameter, now));
  return (
    <label class="whatif-field" title={parameter.meaning || undefined}>
      <span>{parameter.name.replaceAll("_", " ")}</span>
      {parameter.type === "bool" ? (
        <input
          type="checkbox"
          checked={value === "true"}
          onChange={(event) => change(String(event.currentTarget.checked))}
        />
      ) : (
        <input
          type={parameter.type === "str" ? "text" : "number"}
          step={parameter.type === "int" ? 1 : "any"}
          spellcheck={false}
          value={typed.value ?? value}
          placeholder={parameter.default === null ? "has to be given" : ""}
          onInput={(event) => (typed.value = event.currentTarget.value)}
          onBlur={() => (typed.value = null)}
          onChange={(event) => change(event.currentTarget.value)}
        />
      )}
    </label>
  );
}
