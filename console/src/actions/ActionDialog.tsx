import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useId, useRef, useState } from "react";
import { write } from "../api/client";
import { ConnectionLost, Problem } from "../api/problem";
import { announce } from "../elements/announcements";
import { CopyButton } from "../elements/CopyButton";
import { Dialog } from "../elements/Dialog";
import { detailOf } from "../elements/states";
import { Status } from "../elements/status";
import { Time } from "../elements/time";
import { shortActor } from "../navigation/Sidebar";
import { curlCommand, shellCommand } from "../values/commandLine";
import { type Action, bodyText, type Entered, type Field } from "./action";
import { type Conflict, readConflict } from "./conflict";
import "./action-dialog.css";

interface Props {
  action: Action;
  onClose: () => void;
}

type Refusal = { kind: "conflict"; problem: Problem; conflict: Conflict } | { kind: "problem"; text: string };

/** Asks for confirmation of an action: states its effect first, then carries it out once. */
export function ActionDialog({ action, onClose }: Props) {
  const client = useQueryClient();
  const [entered, setEntered] = useState<Entered>({});
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const sent = useRef(false); // a second press arrives before the state does
  const missing = invalidField(action.fields, entered);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (sent.current || missing) return;
    sent.current = true;
    setIsBusy(true);
    setRefusal(null);
    try {
      const { status } = await write("POST", action.path, bodyText(action, entered));
      announce(status === 202 ? `${action.verb}: stored, and carried out soon.` : `${action.verb}: done.`);
      onClose();
    } catch (error) {
      setRefusal(await refusalOf(error, action));
      sent.current = false;
    } finally {
      setIsBusy(false);
      for (const key of ["execution", "executions", "reviews", "dead-letters", "overview"]) {
        void client.invalidateQueries({ queryKey: [key] });
      }
    }
  };

  return (
    <Dialog title={action.title} onClose={onClose}>
      <form className="dialog-body" onSubmit={submit}>
        <p className="effect">{action.effect}</p>
        {action.fields.map((field) => (
          <ActionField
            key={field.name}
            field={field}
            entered={entered}
            onChange={(value) => setEntered({ ...entered, [field.name]: value })}
          />
        ))}
        <Commands action={action} entered={entered} />
        <div role="alert">{refusal && <RefusalText refusal={refusal} />}</div>
        <div className="dialog-foot">
          <button type="button" className="button" onClick={onClose}>
            {refusal?.kind === "conflict" ? "Close" : "Keep as it is"}
          </button>
          {refusal?.kind !== "conflict" && (
            <button
              type="submit"
              className={`button ${action.isDangerous ? "danger" : "primary"}`}
              aria-disabled={isBusy || missing !== null}
            >
              <action.icon size={14} aria-hidden="true" />
              {action.verb}
            </button>
          )}
        </div>
      </form>
    </Dialog>
  );
}

async function refusalOf(error: unknown, action: Action): Promise<Refusal> {
  if (error instanceof ConnectionLost) {
    const text =
      "The service did not answer. The action may have been carried out: check the state before you repeat it.";
    return { kind: "problem", text };
  }
  if (!(error instanceof Problem)) return { kind: "problem", text: String(error) };
  if (error.status === 409) {
    try {
      return { kind: "conflict", problem: error, conflict: await readConflict(action.executionId, action.seenSeq) };
    } catch {
      // the problem itself is all that can be told
    }
  }
  return { kind: "problem", text: [detailOf(error), error.hint].filter(Boolean).join(" ") };
}

function RefusalText({ refusal }: { refusal: Refusal }) {
  if (refusal.kind === "problem") return <p className="form-problem wrap">{refusal.text}</p>;
  const { conflict, problem } = refusal;
  return (
    <div className="conflict">
      <p>
        <strong>Nothing was changed.</strong> {problem.message}
      </p>
      {conflict.actor && (
        <p>
          <strong title={conflict.actor}>{shortActor(conflict.actor)}</strong> {conflict.deed},{" "}
          <Time at={conflict.at} />.
        </p>
      )}
      <p className="row">
        The execution is now <Status status={conflict.execution.status} />
      </p>
    </div>
  );
}

interface FieldProps {
  field: Field;
  entered: Entered;
  onChange: (value: string) => void;
}

function ActionField({ field, entered, onChange }: FieldProps) {
  const id = useId();
  const value = entered[field.name] ?? "";
  if (field.kind === "choice") return <Choice field={field} value={value} onChange={onChange} />;
  if (field.kind === "flag") {
    const isOff = field.needs !== undefined && !entered[field.needs];
    return (
      <label className="flag">
        <input
          type="checkbox"
          checked={!isOff && value !== ""}
          disabled={isOff}
          onChange={(event) => onChange(event.target.checked ? "yes" : "")}
        />
        <span>
          {field.label}
          {field.note && <span className="small secondary">{field.note}</span>}
        </span>
      </label>
    );
  }
  const problem = field.kind === "json" ? jsonProblem(value) : "";
  return (
    <div className="field">
      <label htmlFor={id}>{field.label}</label>
      <textarea
        id={id}
        className={`input${field.kind === "json" ? " mono" : ""}`}
        rows={2}
        required={field.kind === "text" && field.required}
        maxLength={field.kind === "text" ? 2_000 : undefined}
        spellCheck={field.kind === "text"}
        value={value}
        aria-describedby={`${id}-note`}
        aria-invalid={problem !== ""}
        onChange={(event) => onChange(event.target.value)}
      />
      <span id={`${id}-note`} className={problem ? "form-problem small" : "note"}>
        {problem || field.note}
      </span>
    </div>
  );
}

function Choice({
  field,
  value,
  onChange,
}: {
  field: Field & { kind: "choice" };
  value: string;
  onChange: (value: string) => void;
}) {
  const id = useId();
  if (field.options.some((option) => option.note)) {
    return (
      <fieldset className="choices">
        <legend>{field.label}</legend>
        {field.options.map((option) => (
          <label key={option.value}>
            <input type="radio" name={id} checked={value === option.value} onChange={() => onChange(option.value)} />
            <span>
              {option.label}
              <span className="small secondary">{option.note}</span>
            </span>
          </label>
        ))}
      </fieldset>
    );
  }
  return (
    <label className="field">
      <span>{field.label}</span>
      <select className="input" value={value} onChange={(event) => onChange(event.target.value)}>
        {field.options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.label}
          </option>
        ))}
      </select>
    </label>
  );
}

function invalidField(fields: readonly Field[], entered: Entered): Field | null {
  const isWrong = (field: Field): boolean => {
    const value = entered[field.name] ?? "";
    return field.kind === "json" ? jsonProblem(value) !== "" : field.kind === "text" && field.required && !value.trim();
  };
  return fields.find(isWrong) ?? null;
}

function jsonProblem(text: string): string {
  if (!text.trim()) return "";
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `Not JSON: ${error instanceof Error ? error.message : "it cannot be read"}. Write texts in double quotes.`;
  }
}

/** The action as a command and as a request. Neither contains a credential. */
function Commands({ action, entered }: { action: Action; entered: Entered }) {
  const [form, setForm] = useState<"tenuto" | "curl">("tenuto");
  const invalid = invalidField(
    action.fields.filter((field) => field.kind === "json"),
    entered,
  );
  const filled = invalid ? { ...entered, [invalid.name]: "" } : entered;
  const text =
    form === "tenuto"
      ? shellCommand(action.command(filled))
      : curlCommand("POST", action.path, bodyText(action, filled));
  return (
    <details className="commands" open>
      <summary>As a command</summary>
      <div className="row">
        <div className="segments">
          {(["tenuto", "curl"] as const).map((each) => (
            <button key={each} type="button" aria-pressed={form === each} onClick={() => setForm(each)}>
              {each}
            </button>
          ))}
        </div>
        <CopyButton text={text} name="the command" />
      </div>
      <pre className="pre wrapped">{text}</pre>
    </details>
  );
}
