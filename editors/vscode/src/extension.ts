import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { BatchSize } from "./batch_size";
import { Gutter } from "./gutter";
import { CANCEL, MARKS, MEASURE, Marks, REMEMBER, Remember, STATE, State } from "./messages";
import { Panel } from "./panel";
import { Recordings } from "./recording";
import { startServer } from "./server";
import { Status } from "./status";

let client: LanguageClient | undefined;
let starting: Promise<LanguageClient> | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const media = vscode.Uri.joinPath(context.extensionUri, "media");
  const log = vscode.window.createOutputChannel("stepscope");
  const gutter = new Gutter(media);
  const status = new Status();
  const measured = new Set<string>(); // files with a button that opens the panel
  const panel = new Panel(
    media,
    () => client,
    new BatchSize(() => client),
    (lines) => gutter.explore(lines),
  );

  const begin = async (before: Promise<unknown> | undefined, asked: boolean) => {
    await before?.catch(() => undefined); // one after the other, or the first is never ended
    await client?.dispose().catch(() => undefined);
    client = undefined;
    status.reset();
    gutter.reset();
    const listen = (one: LanguageClient) => {
      one.onNotification(REMEMBER, ({ setting, value }: Remember) =>
        vscode.workspace
          .getConfiguration("stepscope")
          .update(setting, value, vscode.ConfigurationTarget.Workspace),
      );
      one.onNotification(MARKS, (marks: Marks) => gutter.show(marks));
      one.onNotification(STATE, (state: State) => {
        log.appendLine(`${state.state}: ${state.message}`);
        status.show(state);
        panel.changed(state.uri);
        measured.add(vscode.Uri.parse(state.uri).fsPath);
        void vscode.commands.executeCommand("setContext", "stepscope.measured", [...measured]);
      });
    };
    client = await startServer(log, listen, asked);
    panel.changed(); // what it shows is the old one's
    return client;
  };
  const start = (asked = true) => {
    const begun = begin(starting, asked);
    starting = begun;
    begun.catch(() => starting === begun && (starting = undefined)); // the next question tries again
    return begun;
  };
  const ask = async (message: string, uri: string) =>
    (await (starting ?? start())).sendRequest(message, { uri });
  const commands: Record<string, () => unknown> = {
    measure: () => onPython((document) => ask(MEASURE, document.uri.toString())),
    cancel: () => onPython((document) => ask(CANCEL, document.uri.toString())),
    panel: () => onPython((document) => panel.open(document)),
    restart: () => start(),
    log: () => log.show(),
  };
  for (const [name, run] of Object.entries(commands)) {
    context.subscriptions.push(vscode.commands.registerCommand(`stepscope.${name}`, run));
  }
  context.subscriptions.push(
    Recordings.register(),
    log,
    gutter,
    status,
    panel,
    vscode.window.onDidChangeTextEditorSelection(({ textEditor, selections }) => {
      const line = selections[0]?.active.line ?? 0;
      if (textEditor.document.languageId === "python") panel.line(textEditor.document, line);
    }),
    vscode.workspace.onDidChangeTextDocument(({ document }) => panel.edited(document)),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("stepscope.interpreter")) void start();
    }),
  );
  await start(false).catch((error) => log.appendLine(`not started: ${error}`));
}

export async function deactivate(): Promise<void> {
  await (await starting?.catch(() => undefined))?.dispose();
}

async function onPython(act: (document: vscode.TextDocument) => unknown): Promise<void> {
  const open = [vscode.window.activeTextEditor, ...vscode.window.visibleTextEditors];
  const editor = open.find((one) => one?.document.languageId === "python");
  if (editor) await act(editor.document);
  else void vscode.window.showInformationMessage("stepscope: open a Python file first.");
}
