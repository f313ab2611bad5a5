import { KeyRound } from "lucide-react";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { write } from "../api/client";
import type { IdentityDocument } from "../api/documents";
import { ConnectionLost, Problem } from "../api/problem";
import { Mark } from "../navigation/Mark";
import "./sign-in.css";

export function openSession(credential: { key: string } | { token: string }): Promise<IdentityDocument> {
  return write<IdentityDocument>("POST", "/v1/session", JSON.stringify(credential)).then(({ body }) => body);
}

interface Props {
  onSignedIn: (identity: IdentityDocument) => void;
  notice?: string | undefined;
}

/** The page on which nobody is signed in. */
export function SignInPage(props: Props) {
  return (
    <main className="sign-in-page">
      <div className="card sign-in">
        <Mark />
        <h1>Sign in</h1>
        <SignInForm {...props} />
        <p className="secondary small">
          No key? On the machine of the service, <code>tenuto console</code> prints a link that signs you in once.
        </p>
      </div>
    </main>
  );
}

export function SignInForm({ onSignedIn, notice }: Props) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState(notice ?? "");
  const [isBusy, setIsBusy] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (isBusy) return;
    setIsBusy(true);
    try {
      const identity = await openSession({ key: key.trim() });
      setKey("");
      onSignedIn(identity);
    } catch (error) {
      setProblem(signInProblem(error));
    } finally {
      setIsBusy(false);
    }
  };
  return (
    <form className="stack" onSubmit={submit}>
      <label className="field">
        <span>API key</span>
        <div className="with-icon">
          <KeyRound size={16} aria-hidden="true" />
          <input
            className="input mono"
            type="password"
            name="key"
            autoComplete="off"
            spellCheck={false}
            required
            ref={field}
            value={key}
            placeholder="tnt_…"
            aria-describedby="sign-in-problem"
            onChange={(event) => setKey(event.target.value)}
          />
        </div>
      </label>
      <p id="sign-in-problem" className="form-problem" role="alert">
        {problem}
      </p>
      <button type="submit" className="button primary" aria-disabled={isBusy}>
        {isBusy ? "Signing in…" : "Sign in"}
      </button>
    </form>
  );
}

export function signInProblem(error: unknown): string {
  if (error instanceof ConnectionLost) return "The service cannot be reached. Try again in a moment.";
  if (!(error instanceof Problem)) return "Sign-in failed.";
  return [error.message, error.hint ? `${error.hint[0]?.toUpperCase()}${error.hint.slice(1)}.` : ""].join(" ").trim();
}
