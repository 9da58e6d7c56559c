import * as vscode from "vscode";
import { State } from "./messages";

const ICONS = {
  measuring: "sync~spin",
  measured: "dashboard",
  failed: "error",
  cancelled: "circle-slash",
};

const MOST_LETTERS = 60;

/** What the server is doing with the file in front, in the status bar; a click opens the panel. */
export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem(vscode.StatusBarAlignment.Right, 90);
  private readonly states = new Map<string, State>();
  private readonly watch: vscode.Disposable;

  constructor() {
    this.item.name = "stepscope";
    this.watch = vscode.window.onDidChangeActiveTextEditor(() => this.update());
    this.update();
  }

  /** Take over the state of one file. */
  show(state: State): void {
    this.states.set(vscode.Uri.parse(state.uri).toString(), state);
    this.update();
  }

  /** Forget all states: the server that told them is gone. */
  reset(): void {
    this.states.clear();
    this.update();
  }

  dispose(): void {
    this.item.dispose();
    this.watch.dispose();
  }

  private update(): void {
    const document = inFront();
    if (!document) return this.item.hide();
    const state = this.states.get(document.uri.toString());
    const busy = state?.state === "measuring";
    this.item.text = state ? `$(${ICONS[state.state]}) ${short(state)}` : "$(dashboard) stepscope";
    this.item.command = busy ? "stepscope.cancel" : state ? "stepscope.panel" : "stepscope.measure";
    this.item.tooltip = busy
      ? "Stop measuring"
      : state
        ? `${state.message}\n\nOpen the batch size panel`
        : "Measure this file";
    this.item.show();
  }
}

/** The Python file that the user is at; with the focus in a panel or a log, the one beside it. */
function inFront(): vscode.TextDocument | undefined {
  const active = vscode.window.activeTextEditor;
  const inFile = active && active.document.uri.scheme !== "output";
  const open = inFile ? [active] : vscode.window.visibleTextEditors;
  return open.map((one) => one.document).find((one) => one.languageId === "python");
}

/** Where there is room for one only, what was found says more than what was expected. */
function short({ state, message }: State): string {
  const found = state === "failed" ? message.replace(/^.*? fails: /s, "") : message;
  return found.length > MOST_LETTERS ? `${found.slice(0, MOST_LETTERS)}…` : found;
}
