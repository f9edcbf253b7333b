package cli

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"

	"foldyard/internal/proof"
)

type junitCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Failure *junitIs `xml:"failure,omitempty"`
	Error   *junitIs `xml:"error,omitempty"`
	Skipped *junitIs `xml:"skipped,omitempty"`
}

type junitIs struct {
	Message string `xml:"message,attr"`
}

func writeJUnit(w io.Writer, rep proof.Report) error {
	var suite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	suite.Name = "fy verify"
	for _, r := range rep.Rows {
		c := junitCase{Class: "foldyard." + string(r.Ring), Name: r.ID + ": " + r.Title}
		is := &junitIs{r.Detail}
		switch r.Result {
		case proof.Fail:
			c.Failure = is
			suite.Failures++
		case proof.Unproven:
			c.Error = is
			suite.Errors++
		case proof.NA, proof.Warn:
			c.Skipped = is
			suite.Skipped++
		case proof.Pass:
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func writeSARIF(w io.Writer, rep proof.Report) error {
	type m map[string]any
	results := []m{}
	rules := []m{}
	for _, r := range rep.Rows {
		rules = append(rules, m{"id": r.ID, "shortDescription": m{"text": r.Title}})
		level := ""
		switch r.Result {
		case proof.Fail:
			level = "error"
		case proof.Unproven, proof.Warn:
			level = "warning"
		case proof.Pass, proof.NA:
			continue
		}
		results = append(results, m{"ruleId": r.ID, "level": level, "message": m{"text": strings.TrimSpace(r.Title + ": " + r.Detail)}})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(m{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []m{{"tool": m{"driver": m{"name": "foldyard", "version": rep.Version, "rules": rules}}, "results": results}},
	})
}
