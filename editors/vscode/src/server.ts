import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { LanguageClient, RevealOutputChannelOn } from "vscode-languageclient/node";
import { interpreter } from "./interpreter";

/**
 * The language server, started with the chosen interpreter; `listen` is called before it runs.
 * Unless it was asked for, nothing is started or said where the interpreter has no stepscope.
 */
export async function startServer(
  log: vscode.OutputChannel,
  listen: (client: LanguageClient) => void,
  asked: boolean,
): Promise<LanguageClient> {
  const command = await interpreter();
  if (!asked && !(await hasStepscope(command))) {
    throw new Error(`${command} has no stepscope`);
  }
  log.appendLine(`starting ${command} -m stepscope lsp`);
  const settings = vscode.workspace.getConfiguration("stepscope");
  const client = new LanguageClient(
    "stepscope",
    "stepscope",
    { command, args: ["-m", "stepscope", "lsp"], options: { cwd: folder() } },
    {
      documentSelector: [
        { scheme: "file", language: "python" },
        { scheme: "file", pattern: "**/*.{yaml,yml,json,toml}" }, // may hold the batch size
      ],
      synchronize: { configurationSection: "stepscope" },
      initializationOptions: settings,
      outputChannel: log,
      revealOutputChannelOn: RevealOutputChannelOn.Never,
      middleware: { handleWorkDoneProgress: () => undefined }, // shown in the status bar
    },
  );
  listen(client);
  try {
    await client.start();
  } catch (error) {
    void explain(command, error);
    throw error;
  }
  return client;
}

const FIND = "import importlib.util as u, sys; sys.exit(u.find_spec('stepscope') is None)";

function hasStepscope(command: string): Promise<boolean> {
  return new Promise((answer) => {
    execFile(command, ["-c", FIND], { cwd: folder() }, (error) => answer(!error));
  });
}

function folder(): string | undefined {
  return vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
}

async function explain(command: string, error: unknown): Promise<void> {
  const choose = "Choose Interpreter";
  const picked = await vscode.window.showErrorMessage(
    `stepscope did not start with ${command} (${error}). Is it installed there? pip install stepscope`,
    choose,
  );
  if (picked === choose) {
    await vscode.commands.executeCommand("workbench.action.openSettings", "stepscope.interpreter");
  }
}
